package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTheColumnsOfKubectlGet checks the table that the API server returns for the CredentialIssuer.
func TestTheColumnsOfKubectlGet(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	get := func(args ...string) (header, row []string) {
		t.Helper()
		out := w.succeed(t, w.kubectl, append([]string{
			"--kubeconfig=" + w.Cluster.AdminKubeconfig(), "get", "credentialissuers.config.concierge.pinniped.dev",
		}, args...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return strings.Fields(lines[0]), strings.Fields(lines[len(lines)-1])
	}
	header, row := get()
	if diff := cmp.Diff(
		[]string{"NAME", "PROXYMODE", "DEFAULTSTRATEGY", "REASON", "TRANSITION", "AGE"},
		header,
	); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	if !slices.Contains(row, "Listening") {
		t.Errorf("the row is %q", row)
	}
	header, row = get("--output=wide")
	if diff := cmp.Diff(
		[]string{"NAME", "PROXYMODE", "DEFAULTSTRATEGY", "REASON", "TRANSITION", "ENDPOINT", "EXPIRES", "AGE"},
		header,
	); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	serving := w.issuer(t).Status.ServingCertificate
	for _, want := range []string{"https://" + w.endpoint(), serving.NotAfter.UTC().Format("2006-01-02T15:04:05Z")} {
		if !slices.Contains(row, want) {
			t.Errorf("there is no %s in %q", want, row)
		}
	}
}
