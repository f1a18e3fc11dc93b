package serving

import (
	"testing"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// TestWhatCanBeAllowedIsServed keeps the CLI's `--allow` in step with the agent: the CLI offers a code if and only if
// the agent can be configured to serve such a certificate.
func TestWhatCanBeAllowedIsServed(t *testing.T) {
	t.Parallel()
	for _, code := range certs.Codes() {
		if e, _ := certs.Explain(code); e.Severity != certs.SeverityError {
			continue
		}
		// The agent does not know which CA bundle clients had before, so it never reports OldClientsBreak.
		serves := code == certs.OldClientsBreak || outcomeOf(code, configv1alpha1.VerificationWarn, false) != refused
		if serves != certs.Allowable(code) {
			t.Errorf("%s: the agent serves it: %v; --allow takes it: %v", code, serves, certs.Allowable(code))
		}
	}
}
