package credentialissuer

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// tellOldClients tells, by an event and in the log, that clients refuse the certificate now in service if they trust
// only the CA bundle that was advertised before. The agent does not refuse such a certificate: the Secret brings its
// own CA bundle, and an admin may want the change. Where a CA was renewed by itself, it comes as a surprise.
func (r *Reconciler) tellOldClients(
	ctx context.Context, issuer *configv1alpha1.CredentialIssuer, serving *servingcert.ServingCertificate,
) {
	before, _ := frontendBundle(issuer)
	problem := oldClientsProblem(before, serving, r.Clock.Now())
	if problem == "" {
		return
	}
	logs.Warn(ctx, "Put a certificate into service that kubeconfigs handed out before do not accept",
		"secret", serving.Secret, "sha256", serving.SHA256(), "problem", problem)
	r.Events.Event(issuer, corev1.EventTypeWarning, string(certs.OldClientsBreak), clip(problem))
}

// oldClientsProblem says what is wrong for clients that trust only the CA bundle before; "" if nothing is, if that is
// not known, or if the certificate is no better for clients with the bundle that goes with it.
func oldClientsProblem(before []byte, serving *servingcert.ServingCertificate, now time.Time) string {
	old, _ := certs.ParseBundle(before)
	if serving == nil || len(old) == 0 {
		return "" // without a bundle, the clients' system roots count, and the agent's image has none
	}
	leaf, intermediates := serving.Certificate.Leaf, x509.NewCertPool()
	for _, der := range serving.Certificate.Certificate[1:] {
		if intermediate, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(intermediate)
		}
	}
	verifies := func(bundle []*x509.Certificate) bool {
		roots := x509.NewCertPool()
		for _, member := range bundle {
			roots.AddCert(member)
		}
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		return err == nil
	}
	present, _ := certs.ParseBundle(serving.Bundle)
	if verifies(old) || len(present) > 0 && !verifies(present) {
		return ""
	}
	var trusted []string
	for _, member := range old {
		trusted = append(trusted, fmt.Sprintf("%q", member.Subject.String()))
	}
	return fmt.Sprintf(
		"%s: kubeconfigs handed out so far stop working: they trust %s, and the certificate that is served "+
			"now is issued by %q (\"pinniped kubeconfig rotate\" puts the CA bundle that is advertised now into them)",
		certs.OldClientsBreak,
		strings.Join(trusted, ", "),
		leaf.Issuer.String(),
	)
}
