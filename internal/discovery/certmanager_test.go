package discovery

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCertificateState(t *testing.T) {
	t.Parallel()
	const head = `{"metadata": {"name": "proxy", "generation": 2}, "spec": {"secretName": "proxy-tls", "issuerRef": {"name": "ca"}}, `
	for _, tt := range []struct {
		name, status string
		want         Certificate
	}{
		{"cert-manager has not seen", `{}`, Certificate{Ready: true, Issuing: true}},
		{
			"is being issued",
			`{"conditions": [
				{"type": "Ready", "status": "False", "reason": "DoesNotExist", "message": "no Secret", "observedGeneration": 2},
				{"type": "Issuing", "status": "True", "reason": "DoesNotExist", "observedGeneration": 2}
			]}`,
			Certificate{Issuing: true, Reason: "DoesNotExist", Message: "no Secret"},
		},
		{
			"is issued", `{"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]}`,
			Certificate{Ready: true},
		},
		{
			"has changed since it was issued", `{"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}`,
			Certificate{Ready: true, Issuing: true},
		},
		{
			"has failed",
			`{"lastFailureTime": "2026-01-01T00:00:00Z", "conditions": [
				{"type": "Ready", "status": "False", "reason": "DoesNotExist", "message": "no Secret", "observedGeneration": 2},
				{"type": "Issuing", "status": "False", "reason": "Denied", "message": "not approved", "observedGeneration": 2}
			]}`,
			Certificate{Reason: "DoesNotExist", Message: "no Secret", Failed: "Denied: not approved"},
		},
		{
			"has changed since it failed",
			`{"lastFailureTime": "2026-01-01T00:00:00Z", "conditions": [
				{"type": "Issuing", "status": "False", "reason": "Denied", "message": "not approved", "observedGeneration": 1}
			]}`,
			Certificate{Ready: true, Issuing: true},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var object certificateObject
			if err := json.Unmarshal([]byte(head+`"status": `+tt.status+`}`), &object); err != nil {
				t.Fatal(err)
			}
			tt.want.Name, tt.want.Secret, tt.want.Issuer = "proxy", "proxy-tls", "Issuer ca"
			if diff := cmp.Diff(tt.want, object.certificate()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
