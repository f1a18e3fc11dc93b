package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// waitForServed waits until the status has the certificate, and this many replicas that serve it.
func (w *world) waitForServed(t *testing.T, timeout time.Duration, pair *certs.KeyPair,
	replicas, serving int32,
) *configv1alpha1.ServingCertificateStatus {
	t.Helper()
	var served *configv1alpha1.ServingCertificateStatus
	testkit.Eventually(t, timeout, func() error {
		served = w.issuer(t).Status.ServingCertificate
		if served == nil || served.Replicas != replicas || served.ServingReplicas != serving {
			return fmt.Errorf("the status says %+v", served)
		}
		if want := fingerprint(t, pair); served.SHA256 != want {
			return fmt.Errorf("the status says that %s is served, want %s", served.SHA256, want)
		}
		return nil
	})
	return served
}

// TestStatusShowsWhatIsServed checks the served certificate and the number of replicas in the status, through a refusal
// and the death of a replica.
func TestStatusShowsWhatIsServed(t *testing.T) {
	w := needsCluster(t)
	good := w.issue(t, "localhost")
	w.external(t, "told-cert", pairData(good))
	served := w.waitForServed(t, 20*time.Second, good, 2, 2)
	if served.Source != configv1alpha1.ServingCertificateSecret || served.SecretName != "told-cert" ||
		len(served.DNSNames) != 1 ||
		served.DNSNames[0] != "localhost" {
		t.Errorf("the status says %+v", served)
	}

	next := w.issue(t, "localhost")
	w.putSecret(t, "told-cert", map[string][]byte{"tls.crt": good.CertPEM, "tls.key": next.KeyPEM})
	w.waitForStatus(t, "ErrorDuringSetup", string(certs.KeyMismatch))
	w.waitForServed(t, 20*time.Second, good, 2, 2)
	testkit.Eventually(t, 20*time.Second, func() error {
		var events corev1.EventList
		if err := w.admin.List(t.Context(), &events, client.InNamespace("default"),
			client.MatchingFields{"involvedObject.kind": "CredentialIssuer"}); err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == string(certs.KeyMismatch) && event.Type == "Warning" &&
				event.InvolvedObject.Name == devinstall.CredentialIssuer &&
				strings.HasPrefix(event.Message, "KeyMismatch: ") &&
				strings.Contains(event.Message, "told-cert") {
				if event.Count > 1 {
					t.Errorf("one transition was told %d times", event.Count)
				}
				return nil
			}
		}
		return errors.New("there is no event about the key that does not belong to the certificate")
	})
	const metric = `pinniped_agent_serving_certificate_findings{code="KeyMismatch",severity="error"}`
	w.everyReplica(t, 10*time.Second, func(agent *devinstall.Agent) error {
		if scrape(t, agent)[metric] != 1 {
			return errors.New("the metrics do not tell of it")
		}
		return nil
	})
	w.putSecret(t, "told-cert", pairData(next))
	w.waitForServed(t, 20*time.Second, next, 2, 2)

	if _, found := scrape(t, w.agents[0])[metric]; found {
		t.Error("the metrics tell of what is over")
	}

	_, follower := w.leader(t)
	must.Do(t, follower.Kill())
	w.waitForServed(t, 70*time.Second, next, 1, 1)
	start(t, follower)
	w.waitForServed(t, 30*time.Second, next, 2, 2)
	// A replica that stops cleanly is removed from the status within seconds.
	must.Do(t, follower.Stop())
	w.waitForServed(t, 10*time.Second, next, 1, 1)
	start(t, follower)
	w.waitForServed(t, 30*time.Second, next, 2, 2)
}

func fingerprint(t *testing.T, pair *certs.KeyPair) string {
	t.Helper()
	certificate := must.Get(leafOf(pair))(t)
	return certs.Fingerprint(certificate.Raw)
}
