package certs

import "testing"

// TestExpiredIsReportedOnce shows that there is no second finding with another fix if a CA has expired, too, or was issued
// later.
func TestExpiredIsReportedOnce(t *testing.T) {
	t.Parallel()
	root := newRoot(t, "Root", validity(-100*day, -10*day))
	in := inputFor(t, root, root.newLeaf(t, validity(-50*day, -2*day)))
	report := Check(in)
	if errs := report.Errors(); len(errs) != 1 || errs[0].Code != Expired {
		t.Errorf("the errors are %v", errs)
	}
}
