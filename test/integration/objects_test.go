package integration

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func (w *world) createUser(ctx context.Context, name, hash, groups string) error {
	return w.admin.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: devinstall.LocalUserNamespace, Name: name},
		StringData: map[string]string{"passwordHash": hash, "groups": groups},
	})
}

// createWebhookAuthenticator creates a WebhookAuthenticator for the local-user-authenticator, with the CA from the
// Secret that the seed's walkthrough uses.
func (w *world) createWebhookAuthenticator(ctx context.Context) error {
	var secret corev1.Secret
	name := types.NamespacedName{
		Namespace: devinstall.LocalUserNamespace,
		Name:      "local-user-authenticator-tls-serving-certificate",
	}
	if err := w.admin.Get(ctx, name, &secret); err != nil {
		return err
	}
	return w.admin.Create(ctx, &authenticationv1alpha1.WebhookAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: "local-user-authenticator"},
		Spec: authenticationv1alpha1.WebhookAuthenticatorSpec{
			Endpoint: w.users.Endpoint(),
			TLS: &authenticationv1alpha1.TLSSpec{
				CertificateAuthorityData: base64.StdEncoding.EncodeToString(secret.Data["caCertificate"]),
			},
		},
	})
}

// issue issues a serving certificate of the corporate CA, valid from now on.
func (w *world) issue(t *testing.T, names ...string) *certs.KeyPair {
	t.Helper()
	return issueAt(t, w.pki, time.Now(), 90*24*time.Hour, names...)
}

func issueAt(t *testing.T, ca *certs.CA, at time.Time, ttl time.Duration, names ...string) *certs.KeyPair {
	t.Helper()
	pair := must.Get(ca.IssueServing(certs.SANs{DNSNames: names}, at, ttl))(t)
	return pair
}

func newCA(t *testing.T, name string, at time.Time) *certs.CA {
	t.Helper()
	ca := must.Get(certs.NewCA(name, at, 1000*24*time.Hour))(t)
	return ca
}

// fileWith returns the path of a new file.
func fileWith(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, content, 0o600))
	return path
}

// ours returns the key of an object in the agent's namespace.
func ours(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: devinstall.Namespace, Name: name}
}

func ourMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: devinstall.Namespace, Name: name}
}

// create creates objects until the end of the test.
func (w *world) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		must.Do(t, w.admin.Create(t.Context(), object))
		w.removeAfterwards(t, object)
	}
}

// removeAfterwards deletes objects that a document creates when the test ends.
func (w *world) removeAfterwards(t *testing.T, objects ...client.Object) {
	t.Helper()
	t.Cleanup(func() {
		for _, object := range objects {
			if err := w.admin.Delete(context.WithoutCancel(t.Context()), object); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	})
}

// putSecret creates or replaces a TLS Secret in the agent's namespace.
func (w *world) putSecret(t *testing.T, name string, data map[string][]byte) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: ourMeta(name),
		Type:       corev1.SecretTypeTLS,
		Data:       data,
	}
	err := w.admin.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		var there corev1.Secret
		if err = w.admin.Get(t.Context(), ours(name), &there); err == nil {
			there.Data = data
			err = w.admin.Update(t.Context(), &there)
		}
	}
	must.Do(t, err)
}

func pairData(pair *certs.KeyPair) map[string][]byte {
	return map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM}
}

// withCA also has the CA bundle.
func withCA(pair *certs.KeyPair, bundle []byte) map[string][]byte {
	data := pairData(pair)
	data["ca.crt"] = bundle
	return data
}

func (w *world) issuer(t *testing.T) *configv1alpha1.CredentialIssuer {
	t.Helper()
	var issuer configv1alpha1.CredentialIssuer
	testkit.Eventually(t, 5*time.Second, func() error { // an API server that has just started may fail once
		return w.admin.Get(
			t.Context(),
			types.NamespacedName{Name: cmp.Or(w.issuerName, devinstall.CredentialIssuer)},
			&issuer,
		)
	})
	return &issuer
}

// configure changes the CredentialIssuer's spec, as `kubectl edit` would.
func (w *world) configure(t *testing.T, change func(*configv1alpha1.ImpersonationProxySpec)) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() error {
		issuer := w.issuer(t)
		change(issuer.Spec.ImpersonationProxy)
		return w.admin.Update(t.Context(), issuer)
	})
}

// generatedOnly resets the CredentialIssuer to the state in which most tests start: the proxy enabled, no Service,
// generated certificate, localhost and the first replica's port as the endpoint.
func (w *world) generatedOnly(t *testing.T) {
	t.Helper()
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		*s = configv1alpha1.ImpersonationProxySpec{
			Mode:             configv1alpha1.ImpersonationProxyModeEnabled,
			Service:          configv1alpha1.ImpersonationProxyServiceSpec{Type: configv1alpha1.ServiceTypeNone},
			ExternalEndpoint: w.endpoint(),
		}
	})
	w.everyReplica(t, 15*time.Second, func(agent *devinstall.Agent) error {
		return errors.Join(presentsGenerated(agent), agent.Ready(t.Context()))
	})
	testkit.Eventually(t, 10*time.Second, func() error {
		var generated corev1.Secret
		name := ours("pinniped-concierge-impersonation-proxy-ca-certificate")
		if err := w.admin.Get(t.Context(), name, &generated); err != nil {
			return err
		}
		strategy := w.strategy(t)
		if strategy.Status != configv1alpha1.StrategySuccess ||
			strategy.Frontend.ImpersonationProxyInfo.CertificateAuthorityData != base64.StdEncoding.EncodeToString(
				generated.Data["ca.crt"],
			) {
			return fmt.Errorf("the status is %+v", strategy)
		}
		return nil
	})
	w.onlyNow(t)
}

// everyReplica waits until check returns nil for each replica.
func (w *world) everyReplica(t *testing.T, timeout time.Duration, check func(*devinstall.Agent) error) {
	t.Helper()
	for _, agent := range w.agents {
		testkit.Eventually(t, timeout, func() error { return check(agent) })
	}
}

// allPresent waits until every replica presents the certificate of pair.
func (w *world) allPresent(t *testing.T, timeout time.Duration, pair *certs.KeyPair) {
	t.Helper()
	w.everyReplica(t, timeout, func(agent *devinstall.Agent) error { return presents(agent.ProxyAddress(), pair) })
}

// allServe waits until every replica presents the certificate of pair, and is ready.
func (w *world) allServe(t *testing.T, timeout time.Duration, pair *certs.KeyPair) {
	t.Helper()
	w.everyReplica(t, timeout, func(agent *devinstall.Agent) error {
		return errors.Join(presents(agent.ProxyAddress(), pair), agent.Ready(t.Context()))
	})
}

// kill kills replicas at the same time, and starts them again.
func kill(t *testing.T, replicas ...*devinstall.Agent) {
	t.Helper()
	for _, replica := range replicas {
		must.Do(t, replica.Kill())
	}
	start(t, replicas...)
}

func stop(t *testing.T, replicas ...*devinstall.Agent) {
	t.Helper()
	for _, replica := range replicas {
		must.Do(t, replica.Stop())
	}
}

// start starts replicas that do not run, one after the other.
func start(t *testing.T, replicas ...*devinstall.Agent) {
	t.Helper()
	for _, replica := range replicas {
		must.Do(t, replica.Restart(context.WithoutCancel(t.Context())))
	}
}

// endpoint returns HOST:PORT of the first replica's proxy.
func (w *world) endpoint() string { return fmt.Sprintf("localhost:%d", w.agents[0].ProxyPort) }

func (w *world) strategy(t *testing.T) configv1alpha1.CredentialIssuerStrategy {
	t.Helper()
	for _, strategy := range w.issuer(t).Status.Strategies {
		if strategy.Type == configv1alpha1.StrategyImpersonationProxy {
			return strategy
		}
	}
	return configv1alpha1.CredentialIssuerStrategy{}
}

func (w *world) waitForStatus(
	t *testing.T,
	reason configv1alpha1.StrategyReason,
	text string,
) configv1alpha1.CredentialIssuerStrategy {
	t.Helper()
	var strategy configv1alpha1.CredentialIssuerStrategy
	testkit.Eventually(t, 20*time.Second, func() error {
		strategy = w.strategy(t)
		if strategy.Reason != reason || !strings.Contains(strategy.Message, text) {
			return fmt.Errorf("the status is %s: %s (want %s with %q)", strategy.Reason, strategy.Message, reason, text)
		}
		return nil
	})
	return strategy
}

// handshake connects to address without verification. A proxy that starts may listen for a while before it responds.
func handshake(address string) (*tls.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: 2 * time.Second}, "tcp", address,
		&tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
}

// presented returns the certificate that a new connection to address gets.
func presented(address string) (*x509.Certificate, error) {
	connection, err := handshake(address)
	if err != nil {
		return nil, err
	}
	defer connection.Close() //nolint:errcheck // only the handshake counts
	return connection.ConnectionState().PeerCertificates[0], nil
}

func presentsGenerated(agent *devinstall.Agent) error {
	certificate, err := presented(agent.ProxyAddress())
	if err == nil && certificate.Issuer.CommonName != "Pinniped Impersonation Proxy Serving CA" {
		err = fmt.Errorf("a certificate of %s is served", certificate.Issuer)
	}
	return err
}

// presents checks that a new connection to address gets exactly the certificate of pair.
func presents(address string, pair *certs.KeyPair) error {
	certificate, err := presented(address)
	if err != nil {
		return err
	}
	want, err := leafOf(pair)
	if err != nil {
		return err
	}
	if !certificate.Equal(want) {
		return errors.New("another certificate is presented")
	}
	return nil
}

func leafOf(pair *certs.KeyPair) (*x509.Certificate, error) {
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	return certificate.Leaf, err
}
