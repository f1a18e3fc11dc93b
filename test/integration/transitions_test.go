package integration

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const generatedSecret = "pinniped-concierge-impersonation-proxy-tls-serving-certificate"

// TestTransitions makes every change of the serving certificate, under load on both replicas. Half of the clients open
// a new connection for each request. No request and no kept connection fails.
func TestTransitions(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	generatedBundle := w.publishedBundle(t)
	other := newCA(t, "Another CA", time.Now())
	roots := trusting(generatedBundle, w.pki.CertPEM(), other.CertPEM())
	leader, _ := w.leader(t)
	logged := w.logFrom(t, leader)
	load := w.load(t, roots)

	a, b := w.issue(t, "localhost"), issueAt(t, other, time.Now(), 90*24*time.Hour, "localhost")
	w.putSecret(t, "transition-a", withCA(a, w.pki.CertPEM()))
	w.putSecret(t, "transition-b", withCA(b, other.CertPEM()))
	use := func(secret string) {
		t.Helper()
		w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
			s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{
				SecretName:   secret,
				Verification: configv1alpha1.VerificationEnforce,
			}
		})
	}
	served := func(pair *certs.KeyPair, bundle []byte) {
		t.Helper()
		w.waitForServed(t, 30*time.Second, pair, 2, 2)
		w.waitForStatus(t, "Listening", "ready to accept")
		if got := w.publishedBundle(t); !bytes.Equal(got, bundle) {
			t.Errorf("another CA bundle is published:\n%s", got)
		}
		for _, agent := range w.agents {
			if err := presents(agent.ProxyAddress(), pair); err != nil {
				t.Error(err)
			}
		}
	}
	refused := func(reason configv1alpha1.StrategyReason, code certs.Code, stays *certs.KeyPair) {
		t.Helper()
		w.waitForStatus(t, reason, string(code)+":")
		for _, agent := range w.agents {
			if err := errors.Join(presents(agent.ProxyAddress(), stays), agent.Ready(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}

	step := func(name string, do func()) {
		before := load.requests.Load()
		do()
		t.Logf("%s: %d requests", name, load.requests.Load()-before)
	}
	step("generated to external A, and the generated Secret goes", func() {
		use("transition-a")
		served(a, w.pki.CertPEM())
		w.waitForNoSecret(t, generatedSecret)
	})
	step("external A to external B", func() {
		use("transition-b")
		served(b, other.CertPEM())
	})
	step("the Secret is deleted, and made again", func() {
		w.deleteSecret(t, "transition-b")
		refused("Pending", certs.SecretNotFound, b)
		w.putSecret(t, "transition-b", withCA(b, other.CertPEM()))
		served(b, other.CertPEM())
	})
	step("the Secret is emptied, and filled again", func() {
		w.putSecret(t, "transition-b", map[string][]byte{"tls.crt": nil, "tls.key": nil})
		refused("Pending", certs.SecretIncomplete, b)
		w.putSecret(t, "transition-b", withCA(b, other.CertPEM()))
		served(b, other.CertPEM())
	})
	step("the Secret is corrupted, and fixed", func() {
		w.putSecret(
			t,
			"transition-b",
			map[string][]byte{"tls.crt": b.CertPEM[:len(b.CertPEM)/2], "tls.key": b.KeyPEM, "ca.crt": other.CertPEM()},
		)
		refused("ErrorDuringSetup", certs.NotACertificate, b)
		w.putSecret(t, "transition-b", withCA(b, other.CertPEM()))
		served(b, other.CertPEM())
	})
	step("the key first, the certificate later", func() {
		next := issueAt(t, other, time.Now(), 90*24*time.Hour, "localhost")
		w.putSecret(
			t,
			"transition-b",
			map[string][]byte{"tls.crt": b.CertPEM, "tls.key": next.KeyPEM, "ca.crt": other.CertPEM()},
		)
		refused("ErrorDuringSetup", certs.KeyMismatch, b)
		w.putSecret(t, "transition-b", withCA(next, other.CertPEM()))
		served(next, other.CertPEM())
		b = next
	})
	step("the intermediates only", func() {
		line := newLine(t, other)
		chain := func() *certs.KeyPair {
			return &certs.KeyPair{CertPEM: slices.Concat(line.leaf.CertPEM, line.intermediate(t)), KeyPEM: line.leaf.KeyPEM}
		}
		first, second := chain(), chain()
		w.putSecret(t, "transition-b", withCA(first, other.CertPEM()))
		served(first, other.CertPEM())
		w.putSecret(t, "transition-b", withCA(second, other.CertPEM()))
		w.everyReplica(
			t,
			20*time.Second,
			func(agent *devinstall.Agent) error { return presentsChain(agent.ProxyAddress(), second.CertPEM) },
		)
		b = second
	})
	step("the name of the generated Secret", func() {
		w.putSecret(t, generatedSecret, withCA(a, w.pki.CertPEM()))
		use(generatedSecret)
		served(a, w.pki.CertPEM())
		if !w.secretExists(t, generatedSecret) {
			t.Error("the Secret that is served was removed")
		}
	})
	step("external to generated, with the old CA", func() {
		// The user's Secret has the name of the generated one, and the agent does not overwrite it.
		w.deleteSecret(t, generatedSecret)
		w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS = nil })
		w.everyReplica(t, 30*time.Second, presentsGenerated)
		testkit.Eventually(t, 20*time.Second, func() error {
			if w.strategy(t).Reason != configv1alpha1.ReasonListening || !bytes.Equal(w.publishedBundle(t), generatedBundle) {
				return errors.New("another CA than before is published")
			}
			return nil
		})
		w.waitForNoSecret(t, lastKnownGoodSecret)
	})
	load.stop(t)

	// The log has what the proposal wants, each once, although the reconciler ran many times.
	for what, want := range map[string][]string{
		"use of an external certificate":  {"Put serving certificate into service", `"external"`, "transition-a"},
		"a generated certificate":         {"Generated serving certificate"},
		"use of a generated certificate":  {"Put serving certificate into service", `"generated"`},
		"cleanup of the generated Secret": {"Removed an object that is no longer needed", generatedSecret},
		"cleanup of the copy":             {"Removed an object that is no longer needed", lastKnownGoodSecret},
		"a Secret that is not there": {
			// It may also stay in service for a moment, until its replacement is observed.
			"Failed to reconcile CredentialIssuer", "SecretNotFound", `transition-b\" does not exist`,
		},
		"a Secret without its keys":    {"Failed to reconcile CredentialIssuer", "SecretIncomplete"},
		"a damaged Secret":             {"Failed to reconcile CredentialIssuer", "NotACertificate"},
		"a key of another certificate": {"Failed to reconcile CredentialIssuer", "KeyMismatch"},
	} {
		if got := logged(want...); len(got) != 1 {
			log, _ := os.ReadFile(leader.Log())
			t.Errorf("the log tells of %s %d times, want once: lines %d of\n%s", what, len(got), got, log)
		}
	}
	put := logged("Put serving certificate into service", "transition-a")
	removed := logged("Removed an object that is no longer needed", generatedSecret)
	if len(put) == 0 || len(removed) == 0 || removed[0] < put[0] {
		t.Error("the generated Secret was removed before the external certificate was served")
	}
}

// TestExpiryWhileServing lets a certificate expire in service: the status reports it at once, and it stays in service
// until there is a better one.
func TestExpiryWhileServing(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "expiring-cert", pairData(w.issue(t, "localhost")))
	short := issueAt(t, w.pki, time.Now(), 15*time.Second, "localhost")
	w.putSecret(t, "expiring-cert", pairData(short))
	w.waitForStatus(t, "Listening", string(certs.ExpiresSoon))
	w.waitForServed(t, 10*time.Second, short, 2, 2)
	testkit.Eventually(t, 40*time.Second, func() error {
		strategy := w.strategy(t)
		if strategy.Reason != "ErrorDuringSetup" || !strings.HasPrefix(strategy.Message, string(certs.Expired)+":") {
			return fmt.Errorf("the status is %s: %s", strategy.Reason, strategy.Message)
		}
		return nil
	})
	if late := time.Since(short.NotAfter); late > 15*time.Second {
		t.Errorf("it was told %s after the certificate expired", late)
	}
	for _, agent := range w.agents {
		if err := presents(agent.ProxyAddress(), short); err != nil {
			t.Error(err)
		}
	}
	next := w.issue(t, "localhost")
	w.putSecret(t, "expiring-cert", pairData(next))
	w.waitForServed(t, 20*time.Second, next, 2, 2)
	w.waitForStatus(t, "Listening", "ready to accept")
}

// TestFreshInstallWithAnExternalCertificate starts a replica of another installation, with its own names, that has an
// external certificate from the start: the audit log shows no attempt to create a generated one.
func TestFreshInstallWithAnExternalCertificate(t *testing.T) {
	w := needsCluster(t)
	pair := w.issue(t, "localhost")
	w.putSecret(t, "fresh-external", withCA(pair, w.pki.CertPEM()))
	issuer := &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: "fresh-config"},
		Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{
			Mode:             configv1alpha1.ImpersonationProxyModeEnabled,
			Service:          configv1alpha1.ImpersonationProxyServiceSpec{Type: configv1alpha1.ServiceTypeNone},
			ExternalEndpoint: "localhost:8443",
			TLS:              &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "fresh-external"},
		}},
	}
	w.create(t, issuer)
	w.mayRecord(t, "fresh-revisions")
	agent := must.Get(w.StartAgent(
		t.Context(),
		"fresh",
		"appName=fresh",
		"names.apiService=pinniped-concierge-api", // the cluster can have only one
		"names.servingCertificateSecret=pinniped-concierge-api-tls-serving-certificate",
		"names.impersonationProxyServiceAccount=pinniped-concierge-impersonation-proxy",
		"names.impersonationTLSCertificateSecret=fresh-tls",
		"names.impersonationCACertificateSecret=fresh-ca",
		"names.impersonationSignerSecret=fresh-signer",
	))(t)
	testkit.Cleanup(t, agent.Stop)
	must.Do(t, w.PointAt(t.Context(), w.agents[0]))
	testkit.Eventually(t, 40*time.Second, func() error {
		return errors.Join(presents(agent.ProxyAddress(), pair), agent.Ready(t.Context()))
	})
	var written []string
	testkit.Eventually(t, 20*time.Second, func() error { // the leader may write the signer after the certificate is served
		written = w.writtenSecrets(t)
		if !slices.Contains(written, "fresh-signer") ||
			!slices.Contains(written, "fresh-impersonation-proxy-last-known-good-certificate") {
			return fmt.Errorf("the audit log does not even show what was written: %v", written)
		}
		return nil
	})
	for _, name := range []string{"fresh-tls", "fresh-ca"} {
		if slices.Contains(written, name) {
			t.Errorf("Secret %q was written", name)
		}
	}
	// The same check when there is something to find.
	testkit.Eventually(t, 10*time.Second, func() error { // the agent writes its status meanwhile
		if err := w.admin.Get(t.Context(), types.NamespacedName{Name: "fresh-config"}, issuer); err != nil {
			return err
		}
		issuer.Spec.ImpersonationProxy.TLS = nil
		return w.admin.Update(t.Context(), issuer)
	})
	testkit.Eventually(t, 20*time.Second, func() error {
		if written := w.writtenSecrets(t); !slices.Contains(written, "fresh-tls") || !slices.Contains(written, "fresh-ca") {
			return fmt.Errorf("the audit log does not show generated Secrets: %v", written)
		}
		return nil
	})
}

// mayRecord lets the agent keep its revision history in a ConfigMap with another name than the shipped one.
func (w *world) mayRecord(t *testing.T, name string) {
	t.Helper()
	meta := ourMeta(name)
	w.create(t,
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{name},
			Verbs: []string{"create", "get", "patch"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{
				Kind: rbacv1.ServiceAccountKind, Namespace: devinstall.Namespace, Name: devinstall.AgentAccount,
			}},
		},
	)
}

// writtenSecrets returns the names of Secrets in the agent's namespace that the agent tried to create or change,
// according to the audit log.
func (w *world) writtenSecrets(t *testing.T) (names []string) {
	t.Helper()
	for event := range w.audit(t) {
		if ref := event.ObjectRef; slices.Contains([]string{"create", "patch", "update"}, event.Verb) &&
			ref.Resource == "secrets" && ref.Namespace == devinstall.Namespace && event.User.Username == agentUser {
			names = append(names, ref.Name)
		}
	}
	return names
}

func (w *world) secretExists(t *testing.T, name string) bool {
	t.Helper()
	var secret corev1.Secret
	err := w.admin.Get(t.Context(), ours(name), &secret)
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func (w *world) waitForNoSecret(t *testing.T, name string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if w.secretExists(t, name) {
			return fmt.Errorf("Secret %q is still there", name)
		}
		return nil
	})
}

func (w *world) deleteSecret(t *testing.T, name string) {
	t.Helper()
	must.Do(t, w.admin.Delete(t.Context(), &corev1.Secret{ObjectMeta: ourMeta(name)}))
}

// logFrom returns a function that finds the log lines of an agent, from now on, that contain all parts, by line number.
func (*world) logFrom(t *testing.T, agent *devinstall.Agent) func(parts ...string) []int {
	t.Helper()
	read := func() string {
		content := must.Get(os.ReadFile(agent.Log()))(t)
		return string(content)
	}
	before := len(read())
	return func(parts ...string) []int {
		var found []int
		for i, line := range strings.Split(read()[before:], "\n") {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				found = append(found, i)
			}
		}
		return found
	}
}

// presentsChain checks that a new connection to address gets exactly the certificates in chainPEM.
func presentsChain(address string, chainPEM []byte) error {
	connection, err := handshake(address)
	if err != nil {
		return err
	}
	defer connection.Close() //nolint:errcheck // only the handshake counts
	var got []byte
	for _, certificate := range connection.ConnectionState().PeerCertificates {
		got = append(got, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})...)
	}
	if !bytes.Equal(got, chainPEM) {
		return errors.New("another chain is presented")
	}
	return nil
}

// line is a serving certificate of an intermediate CA, whose certificate can be reissued for the same key.
type line struct {
	root    *x509.Certificate
	rootKey crypto.PrivateKey
	key     *ecdsa.PrivateKey
	issued  int64
	leaf    *certs.KeyPair
}

func newLine(t *testing.T, root *certs.CA) *line {
	t.Helper()
	keyPEM := must.Get(root.KeyPEM())(t)
	block, _ := pem.Decode(keyPEM)
	rootKey := must.Get(x509.ParsePKCS8PrivateKey(block.Bytes))(t)
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	l := &line{root: root.Certificate(), rootKey: rootKey, key: key}
	der := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	ca := must.Get(certs.LoadCA(l.intermediate(t), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))(t)
	l.leaf = issueAt(t, ca, time.Now(), 24*time.Hour, "localhost")
	return l
}

// intermediate reissues the certificate of the intermediate CA.
func (l *line) intermediate(t *testing.T) []byte {
	t.Helper()
	l.issued++
	der := must.Get(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1000 + l.issued), Subject: pkix.Name{CommonName: "Intermediate"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, l.root, l.key.Public(), l.rootKey))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestAWrongNameWithoutVerification sets spec.impersonationProxy.tls without verification, as objects for Pinniped do.
// A certificate for another name does not replace a good one, whether generated or external, also when a replica
// restarts. Clients are not affected. With verification Warn, the agent serves it.
func TestAWrongNameWithoutVerification(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	good, wrong := w.issue(t, "localhost"), w.issue(t, "elsewhere.example.com")
	w.putSecret(t, "unverified-good", withCA(good, w.pki.CertPEM()))
	w.putSecret(t, "unverified-wrong", withCA(wrong, w.pki.CertPEM()))
	use := func(secret string, verification configv1alpha1.TLSVerification) {
		t.Helper()
		w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
			s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: secret, Verification: verification}
		})
	}

	generated := must.Get(presented(w.agents[0].ProxyAddress()))(t)
	use("unverified-wrong", "")
	w.waitForStatus(t, "ErrorDuringSetup", string(certs.NameNotCovered))
	for _, agent := range w.agents {
		if now, err := presented(agent.ProxyAddress()); err != nil || !now.Equal(generated) {
			t.Errorf("the generated certificate was replaced: %v", err)
		}
	}

	use("unverified-good", "")
	w.waitForServed(t, 20*time.Second, good, 2, 2)
	use("unverified-wrong", "")
	w.waitForStatus(t, "ErrorDuringSetup", string(certs.NameNotCovered))
	_, follower := w.leader(t)
	kill(t, follower)
	w.allPresent(t, 30*time.Second, good)

	use("unverified-wrong", configv1alpha1.VerificationWarn)
	w.waitForServed(t, 60*time.Second, wrong, 2, 2)
	w.waitForStatus(t, "Listening", string(certs.NameNotCovered))
	use("unverified-wrong", "") // no better certificate is in service
	w.waitForStatus(t, "Listening", string(certs.NameNotCovered))
	w.generatedOnly(t)
}
