package migrate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// kubectl builds command lines for the cluster that was checked.
type kubectl struct {
	flags []string
}

func newKubectl(cluster factory.ClusterFlags) kubectl {
	var flags []string
	if cluster.Kubeconfig != "" {
		flags = append(flags, "--kubeconfig="+cluster.Kubeconfig)
	}
	if cluster.Context != "" {
		flags = append(flags, "--context="+cluster.Context)
	}
	return kubectl{flags}
}

// line returns a kubectl command line, with --namespace if namespace is not empty.
func (k kubectl) line(namespace string, words ...string) string {
	all := append([]string{"kubectl"}, k.flags...)
	if namespace != "" {
		all = append(all, "--namespace="+namespace)
	}
	all = append(all, words...)
	quoted := make([]string, 0, len(all))
	for _, word := range all {
		quoted = append(quoted, ui.ShellWord(word))
	}
	return strings.Join(quoted, " ")
}

// patch returns the command line that applies a JSON patch.
func (k kubectl) patch(ref discovery.Ref, patch []operation, more ...string) (string, error) {
	encoded, err := encode(patch)
	if err != nil {
		return "", fmt.Errorf("encoding the patch of %s: %w", describe(ref), err)
	}
	words := append([]string{"patch", kubectlName(ref), "--type=json", "--patch=" + encoded}, more...)
	return k.line(ref.Namespace, words...), nil
}

// each returns one command line per namespace; cluster-scoped objects come first.
func (k kubectl) each(objects []found, words func(names []string) []string) []string {
	var namespaces []string
	names := map[string][]string{}
	for _, object := range objects {
		if names[object.Ref.Namespace] == nil {
			namespaces = append(namespaces, object.Ref.Namespace)
		}
		names[object.Ref.Namespace] = append(names[object.Ref.Namespace], kubectlName(object.Ref))
	}
	slices.Sort(namespaces)
	var lines []string
	for _, namespace := range namespaces {
		lines = append(lines, k.line(namespace, words(names[namespace])...))
	}
	return lines
}

func (k kubectl) remove(objects []found) []string {
	return k.each(objects, func(names []string) []string { return append([]string{"delete"}, names...) })
}
