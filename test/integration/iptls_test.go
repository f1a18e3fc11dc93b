package integration

import (
	"encoding/json"
	"strings"
	"testing"
)

func decoded(t *testing.T, got result, code int, into any) {
	t.Helper()
	if got.code != code {
		t.Fatalf("it ended with %d, want %d\nstdout: %s\nstderr: %s", got.code, code, got.out, got.errOut)
	}
	if err := json.Unmarshal([]byte(got.out), into); err != nil {
		t.Fatalf("%v in %s", err, got.out)
	}
}

// TestCheck checks a certificate in the cluster, at the endpoint and at another time. Nothing changes.
func TestCheck(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "checked-cert", pairData(w.issue(t, "localhost")))
	before := w.issuer(t)
	bundle := fileWith(t, "ca.pem", w.pki.CertPEM())
	type checked struct {
		OK           bool
		Certificates []struct {
			BreaksAt    string
			Certificate struct{ SHA256 string }
		}
	}
	var inCluster, atEndpoint, later checked
	decoded(t, w.asAdmin(t, "ip-tls", "check", "--timeline", "-o", "json"), 0, &inCluster)
	decoded(t, w.run(t, w.cli, "ip-tls", "check", "--endpoint", w.endpoint(), "--ca-bundle", bundle, "-o", "json"), 0,
		&atEndpoint)
	if !inCluster.OK || !atEndpoint.OK || inCluster.Certificates[0].BreaksAt == "" ||
		inCluster.Certificates[0].Certificate.SHA256 != atEndpoint.Certificates[0].Certificate.SHA256 {
		t.Errorf("in the cluster %+v, at the endpoint %+v", inCluster, atEndpoint)
	}
	decoded(t, w.asAdmin(t, "ip-tls", "check", "--at", "2099-01-01", "-o", "json"), 3, &later)
	if got := w.asAdmin(t, "ip-tls", "check", "--secret", "nowhere"); got.code != 3 ||
		!strings.Contains(got.out, "SecretNotFound") {
		t.Errorf("with a Secret that does not exist it ended with %d: %s%s", got.code, got.out, got.errOut)
	}
	if after := w.issuer(t); later.OK || after.Generation != before.Generation {
		t.Errorf("something was changed, or 2099 is fine: %+v", later)
	}
}
