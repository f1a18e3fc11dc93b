package agent

import "testing"

func TestAccountIn(t *testing.T) {
	t.Parallel()
	for username, want := range map[string]string{
		"system:serviceaccount:ns:agent":    "agent",
		"system:serviceaccount:other:agent": "",
		"kubernetes-admin":                  "",
	} {
		if got := accountIn("ns", username); got != want {
			t.Errorf("%s: got %q, want %q", username, got, want)
		}
	}
}
