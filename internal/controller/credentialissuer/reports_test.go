package credentialissuer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// silentServer accepts connections and does not respond until it is closed.
type silentServer struct {
	listener net.Listener
	asked    chan struct{} // a client has connected

	mu   sync.Mutex
	open []net.Conn
}

func startSilentServer(t *testing.T) *silentServer {
	t.Helper()
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	s := &silentServer{listener: listener, asked: make(chan struct{}, 1)}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open = append(s.open, connection)
			s.mu.Unlock()
			select {
			case s.asked <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(s.close)
	return s
}

func (s *silentServer) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, connection := range s.open {
		_ = connection.Close()
	}
}

// judges registers the silent server as admission webhook for a resource, with a timeout of half a minute.
func (s *silentServer) judges(t *testing.T, cluster *devcluster.Cluster, group, resource string) (end func()) {
	t.Helper()
	scheme := runtime.NewScheme()
	must.Do(t, admissionregistrationv1.AddToScheme(scheme))
	admin := must.Get(client.New(cluster.AdminConfig(), client.Options{Scheme: scheme}))(t)
	hook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "silent"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "silent.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](30),
			SideEffects:   ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To("https://" + s.listener.Addr().String() + "/"),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource},
				},
			}},
		}},
	}
	must.Do(t, admin.Create(t.Context(), hook))
	return func() {
		if err := admin.Delete(context.WithoutCancel(t.Context()), hook); err != nil {
			t.Error(err)
		}
	}
}

// TestNoCertificateWaitsForAReport renews the certificate while an admission webhook that does not respond blocks the
// status. Afterwards the status is complete.
func TestNoCertificateWaitsForAReport(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	leader := startReplica(t, cluster, "default", true)
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	renew := func() string {
		t.Helper()
		pair := must.Get(pki.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, time.Now(), 20*time.Hour))(t)
		leader.putSecret(t, "external", pair, pki.CertPEM())
		served := leafSHA256(t, pair)
		testkit.Eventually(t, waitLimit, func() error { // twice the webhook's timeout
			if current := leader.Holder.Current(); current == nil || current.SHA256() != served {
				return errors.New("another certificate is served")
			}
			return nil
		})
		return served
	}
	leader.create(t, spec{
		Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: "proxy.example.com",
		TLS: &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external"},
	})
	leader.waitForServed(t, renew(), 1, 1)

	webhook := startSilentServer(t)
	answerAgain := webhook.judges(
		t,
		cluster,
		apis.GroupsFor(apis.DefaultGroupSuffix).Config.Group,
		"credentialissuers/status",
	)
	for silent := false; !silent; { // the API server needs time to load the webhook
		served := renew()
		testkit.Eventually(t, waitLimit, func() error {
			select {
			case <-webhook.asked:
				silent = true
				return nil
			default:
			}
			var issuer configv1alpha1.CredentialIssuer
			if err := leader.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, &issuer); err != nil {
				return err
			}
			if got := issuer.Status.ServingCertificate; got == nil || got.SHA256 != served {
				return fmt.Errorf("neither asked nor reported: %+v", got)
			}
			return nil
		})
	}
	renew()
	latest := renew()

	answerAgain()
	webhook.close()
	leader.waitForServed(t, latest, 1, 1)
	testkit.Eventually(t, waitLimit, func() error {
		var issuer configv1alpha1.CredentialIssuer
		if err := leader.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, &issuer); err != nil {
			return err
		}
		if issuer.Status.ObservedGeneration != issuer.Generation || issuer.Status.Objects == nil {
			return fmt.Errorf("a part of the status is missing: %+v", issuer.Status)
		}
		return nil
	})
}
