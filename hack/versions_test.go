package hack

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/kubeversion"
)

// TestVersions compares the Kubernetes versions in documents, workflows and package kubeversion with
// hack/controlplane/versions.txt, the results of hack/controlplane/measure.sh.
func TestVersions(t *testing.T) {
	t.Parallel()
	text := read(t, "controlplane/versions.txt")
	byDefault := regexp.MustCompile(`k8s.io/kubernetes v(1\.\d+)`).FindStringSubmatch(read(t, "controlplane/go.mod"))[1]
	tested := "| version | measured | demo | integration tests | life of the chart |\n|---|---|---|---|---|\n"
	var others []string
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if fields[0] != byDefault {
			others = append(others, fmt.Sprintf("%q", fields[0]))
		}
		row := strings.Join(fields[1:], " | ")
		tested += "| " + strings.ReplaceAll(row, "| -", "| –") + " |\n"
	}
	features := "| what | since | before |\n|---|---|---|\n"
	for _, f := range kubeversion.Features() {
		features += "| " + strings.Join([]string{f.Name, f.Since, f.Before}, " | ") + " |\n"
	}
	const page = "../docs/howto/install.md"
	install := read(t, page)
	for name, table := range map[string]string{"versions": tested, "features": features} {
		block := regexp.MustCompile(`(?s)<!-- ` + name + `: written by TestVersions -->\n\n(.*?)\n\n`)
		found := block.FindStringSubmatchIndex(install + "\n")
		if found == nil {
			t.Fatalf("no table %s in %s", name, page)
		}
		if diff := cmp.Diff(strings.TrimSpace(table), install[found[2]:found[3]]); diff != "" {
			if os.Getenv("UPDATE_GOLDEN") == "" {
				t.Errorf("%s of %s, which UPDATE_GOLDEN=1 writes (-want +got):\n%s", name, page, diff)
			}
			install = install[:found[2]] + strings.TrimSpace(table) + install[found[3]:]
		}
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(page, []byte(install), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	matrix := "kubernetes: [" + strings.Join(others, ", ") + "]"
	if nightly := read(t, "../.github/workflows/nightly.yml"); !strings.Contains(nightly, matrix) {
		t.Errorf("nightly.yml has no matrix %s", matrix)
	}
	ends := "kubernetes: [" + strings.Join(slices.Compact([]string{others[0], others[len(others)-1]}), ", ") + "]"
	if ci := read(t, "../.github/workflows/ci.yml"); !strings.Contains(ci, ends) {
		t.Errorf("ci.yml has no matrix %s", ends)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
