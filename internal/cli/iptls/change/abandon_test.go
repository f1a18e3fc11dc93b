package change

import (
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// TestAllowedRevisionsAreRetired breaks clients of the generated certificate, as the README's first steps do. Then the
// status is good, and a later change ignores these clients.
func TestAllowedRevisionsAreRetired(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.DualTrust(t)
	runSet(t.Context(), w, nil).Check(t, 0, "Retired revision")
	history, err := serving.Read(w.Cluster.Revisions.Data)
	if err != nil || len(history.Revisions) != 2 {
		t.Fatal(history, err)
	}
	for i := range history.Revisions {
		if r := &history.Revisions[i]; r.Ended() == r.Until.IsZero() {
			t.Errorf("revision %s, published until %v, is retired: %v", r.ID, r.Until, r.Ended())
		}
	}
	runStatus(t.Context(), w, session.RealNetwork{}).Check(t, 0, "USERS: not affected")
}
