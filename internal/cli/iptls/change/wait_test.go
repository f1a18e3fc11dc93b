package change

import (
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestWaitForReplicas(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	obeyed := w.Cluster.AfterApply
	leaf, _ := certs.ParseBundle(w.Pair.CertPEM)
	serving := &configv1alpha1.ServingCertificateStatus{
		Source: configv1alpha1.ServingCertificateSecret, SHA256: certs.Fingerprint(leaf[0].Raw), Replicas: 2, ServingReplicas: 1,
		OtherReplicas: []configv1alpha1.OtherReplica{{Name: "agent-x", Message: "it has not seen the Secret yet"}},
	}
	w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
		obeyed(c)
		c.Issuer.Status.ServingCertificate = serving
	}
	runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout, o.Flags.NoRollback = iptlstest.TooShort, true }).
		Check(t, 5, "1 of 2 replicas of the agent serve the certificate; agent-x does not: it has not seen the Secret yet")
	serving.ServingReplicas, serving.OtherReplicas = 2, nil
	runSet(t.Context(), w, nil).Check(t, 0, "unchanged", "presents the certificate")
	serving.SHA256 = strings.Repeat("0", 64)
	runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout = iptlstest.TooShort }).Check(t, 5, "the agent still serves another certificate, SHA-256 0000000000000000")
}
