package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestDependencies compares the modules in the binary with deps.txt, so that new ones are noticed: the plugin runs
// before kubectl commands, and every package adds to its startup time. UPDATE_GOLDEN=1 rewrites the list.
func TestDependencies(t *testing.T) {
	t.Parallel()
	packages := list(t, "{{.ImportPath}}")
	for _, heavy := range []string{
		"k8s.io/client-go/kubernetes", "k8s.io/apiserver", "k8s.io/component-base", "sigs.k8s.io/kustomize",
		"sigs.k8s.io/controller-runtime", "k8s.io/client-go/dynamic", "k8s.io/client-go/informers", "k8s.io/cli-runtime/pkg/resource",
		"k8s.io/cli-runtime/pkg/genericclioptions",
	} {
		for _, pkg := range packages {
			if pkg == heavy || strings.HasPrefix(pkg, heavy+"/") {
				t.Errorf("%s is linked into the CLI", pkg)
			}
		}
	}
	modules := list(t, "{{with .Module}}{{.Path}}{{end}}")
	got := strings.Join(modules, "\n") + "\n"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		must.Do(t, os.WriteFile("deps.txt", []byte(got), 0o600))
	}
	want := must.Get(os.ReadFile("deps.txt"))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("modules of the CLI (-want +got), UPDATE_GOLDEN=1 accepts them:\n%s", diff)
	}
}

// list returns the sorted, distinct results of the template for all packages of the CLI on Linux.
func list(t *testing.T, template string) []string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", template, ".")
	command.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	lines := slices.DeleteFunc(strings.Split(string(output), "\n"), func(line string) bool { return line == "" })
	slices.Sort(lines)
	return slices.Compact(lines)
}
