package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// kubectl holds the flags of command lines for the cluster that was checked.
type kubectl []string

func newKubectl(cluster factory.ClusterFlags) (k kubectl) {
	if cluster.Kubeconfig != "" {
		k = append(k, "--kubeconfig="+cluster.Kubeconfig)
	}
	if cluster.Context != "" {
		k = append(k, "--context="+cluster.Context)
	}
	return k
}

// line returns a kubectl command line, with --namespace if namespace is not empty.
func (k kubectl) line(namespace string, words ...string) string {
	flags := slices.Clone(k)
	if namespace != "" {
		flags = append(flags, "--namespace="+namespace)
	}
	line := "kubectl"
	for _, word := range append(flags, words...) {
		line += " " + ui.ShellWord(word)
	}
	return line
}

// patch returns the command line that applies a JSON patch.
func (k kubectl) patch(ref discovery.Ref, patch []operation, more ...string) (string, error) {
	encoded, err := json.Marshal(patch)
	if err != nil {
		return "", fmt.Errorf("encoding the patch of %s: %w", describe(ref), err)
	}
	words := append([]string{"patch", kubectlName(ref), "--type=json", "--patch=" + string(encoded)}, more...)
	return k.line(ref.Namespace, words...), nil
}

// each returns one command line per namespace; cluster-scoped objects come first.
func (k kubectl) each(objects []found, words func(names []string) []string) []string {
	names := map[string][]string{}
	for _, object := range objects {
		names[object.Ref.Namespace] = append(names[object.Ref.Namespace], kubectlName(object.Ref))
	}
	var lines []string
	for _, namespace := range slices.Sorted(maps.Keys(names)) {
		lines = append(lines, k.line(namespace, words(names[namespace])...))
	}
	return lines
}

func (k kubectl) remove(objects []found) []string {
	return k.each(objects, func(names []string) []string { return append([]string{"delete"}, names...) })
}
