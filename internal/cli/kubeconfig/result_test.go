package kubeconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// TestTrusting shows which files count as done. `pinniped ip-tls rotate` reads such reports to decide whether its
// last step may be taken.
func TestTrusting(t *testing.T) {
	t.Parallel()
	rotated := kubeconfig.Entry{Kind: "cluster", Name: "a", Outcome: kubeconfig.Rotated}
	skipped := func(code kubeconfig.SkipCode) kubeconfig.Entry {
		return kubeconfig.Entry{Kind: "user", Name: "b", Outcome: kubeconfig.Skipped, Code: code}
	}
	file := func(path string, entries ...kubeconfig.Entry) result.File {
		all := entriesOf(entries)
		return result.File{Path: path, Entries: all, Outcome: fileOutcome(all)}
	}
	rotation := &Result{Files: []result.File{
		file("done", rotated),
		file("elsewhere"),
		file("insecure", skipped(kubeconfig.SkipInsecure)),
		file(
			"half",
			rotated,
			skipped(kubeconfig.SkipPlugin),
		),
		file("file", skipped(kubeconfig.SkipCAFile)),
		file("perhaps", skipped(kubeconfig.SkipUncertain)),
		{Path: "damaged", Outcome: result.FileFailed, Reason: "x"},
		{Path: "dangling", Outcome: result.FileSkipped, Reason: "x"},
	}}
	count, without := rotation.Trusting()
	if diff := cmp.Diff([]string{"half", "file", "perhaps", "damaged", "dangling"}, without); diff != "" || count != 2 {
		t.Errorf("%d are done; not done are (-want +got):\n%s", count, diff)
	}
}
