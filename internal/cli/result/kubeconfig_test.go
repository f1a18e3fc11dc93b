package result_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
)

// TestTrusting shows which kubeconfigs count as done. `pinniped ip-tls rotate` reads such reports to decide whether its
// last step may be taken.
func TestTrusting(t *testing.T) {
	t.Parallel()
	one := func(where string, outcome result.FileOutcome, codes ...string) result.RotatedKubeconfig {
		made := result.RotatedKubeconfig{Where: where, Outcome: outcome}
		for _, code := range codes {
			entry := result.Entry{Outcome: result.FileSkipped, Code: code}
			if code == "" {
				entry.Outcome = result.FileRotated
			}
			made.Entries = append(made.Entries, entry)
		}
		return made
	}
	rotation := &result.KubeconfigRotation{Kubeconfigs: []result.RotatedKubeconfig{
		one("done", result.FileRotated, ""),
		one("elsewhere", result.FileUnrelated),
		one("insecure", result.FileSkipped, result.CodeInsecure),
		one("half", result.FileRotated, "", "Plugin"),
		one("file", result.FileSkipped, "CAFile"),
		one("damaged", result.FileFailed),
		one("dangling", result.FileSkipped),
		one("interrupted", result.FileNotDone),
	}}
	count, without := rotation.Trusting()
	if diff := cmp.Diff(
		[]string{"half", "file", "damaged", "dangling", "interrupted"},
		without,
	); diff != "" ||
		count != 2 {
		t.Errorf("%d are done; not done are (-want +got):\n%s", count, diff)
	}
}
