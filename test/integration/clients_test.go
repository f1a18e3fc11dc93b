package integration

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// secondName is a name that some certificates cover in addition to localhost.
const secondName = "second.example.com"

// oldClient is a client with a trust bundle and name of some revision.
type oldClient struct {
	bundle []byte
	name   string
	of     string // time of that revision, for messages
}

// fleet is a world and the clients of every revision that was published during a test.
type fleet struct {
	*world
	cas     map[string]*certs.CA
	bundles map[string]string // files with CA bundles, by their letters
	clients []*oldClient
}

// newFleet puts certificate lock-a of CA "a" into service, for both names. There are Secrets with certificates of other
// CAs, and with one name.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	w := &fleet{world: needsCluster(t), cas: map[string]*certs.CA{}, bundles: map[string]string{}}
	w.generatedOnly(t)
	dir := t.TempDir()
	for _, letter := range []string{"a", "b"} {
		w.cas[letter] = newCA(t, "Lock-out CA "+letter, time.Now())
	}
	for _, letters := range []string{"a", "b", "ab"} {
		var all []byte
		for _, letter := range strings.Split(letters, "") {
			all = append(all, w.cas[letter].CertPEM()...)
		}
		w.bundles[letters] = filepath.Join(dir, letters+".pem")
		must.Do(t, os.WriteFile(w.bundles[letters], all, 0o600))
	}
	for letter := range w.cas {
		w.fill(t, "lock-"+letter, letter, "localhost", secondName)
		w.fill(t, "lock-"+letter+"-one", letter, "localhost")
	}
	w.ipTLS(t, "set", "--secret=lock-a", "--ca-bundle="+w.bundles["a"],
		"--allow=OldClientsBreak").ok(t)
	w.addClients(t)
	return w
}

func (w *fleet) ipTLS(t *testing.T, args ...string) result {
	t.Helper()
	return w.asAdmin(t, append([]string{"ip-tls", "--timeout=60s"}, args...)...)
}

// addClients adds clients of what is currently published, one for each name in the certificate in service. There are
// none while the strategy has an error: then nobody can create a kubeconfig.
func (w *fleet) addClients(t *testing.T) {
	t.Helper()
	var leaf *x509.Certificate
	testkit.Eventually(t, 20*time.Second, func() (err error) {
		if front := w.strategy(t).Frontend; front == nil || front.ImpersonationProxyInfo == nil {
			return errors.New("nothing is published")
		}
		leaf, err = presented(w.agents[0].ProxyAddress())
		return err
	})
	if w.strategy(t).Status != configv1alpha1.StrategySuccess {
		return
	}
	var bundle []byte
	for used := []byte(nil); bundle == nil || !bytes.Equal(bundle, used); bundle = w.publishedBundle(t) {
		used = w.publishedBundle(t) // until it is the revision that was used: another one may follow by itself
		w.use(t)
	}
	for _, name := range leaf.DNSNames {
		known := slices.ContainsFunc(w.clients, func(c *oldClient) bool {
			return c.name == name && certs.SameBundle(c.bundle, bundle)
		})
		if !known {
			w.clients = append(w.clients, &oldClient{bundle: bundle, name: name, of: time.Now().Format(time.TimeOnly)})
		}
	}
}

// use fetches the trust bundle, as a kubeconfig that refreshes itself does, until the agent records the current
// revision as used. Revisions that were never used have no clients.
func (w *world) use(t *testing.T) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
	}, Timeout: 10 * time.Second}
	testkit.Eventually(t, 20*time.Second, func() error {
		address := "https://" + w.agents[0].ProxyAddress() + trustbundle.Path
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		for _, revision := range w.issuer(t).Status.Revisions {
			if revision.Until == nil && revision.LastUsed != nil {
				return nil
			}
		}
		return fmt.Errorf("what is published does not count as used: %+v", w.issuer(t).Status.Revisions)
	})
}

// meets returns the error with which a client rejects the proxy's certificate; nil if it verifies.
func (w *fleet) meets(t *testing.T, c *oldClient) error {
	t.Helper()
	roots := trusting(c.bundle)
	dialer := &tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 10 * time.Second},
		Config:    &tls.Config{RootCAs: roots, ServerName: c.name, MinVersion: tls.VersionTLS12},
	}
	var refused error
	testkit.Eventually(t, 20*time.Second, func() error {
		connection, err := dialer.DialContext(t.Context(), "tcp", w.agents[0].ProxyAddress())
		if _, invalid := errors.AsType[*tls.CertificateVerificationError](err); invalid {
			refused = err
			return nil
		}
		if err != nil {
			return err
		}
		refused = nil
		return connection.Close()
	})
	return refused
}

// working returns the clients that verify the proxy's certificate.
func (w *fleet) working(t *testing.T) (working []*oldClient) {
	t.Helper()
	for _, c := range w.clients {
		if w.meets(t, c) == nil {
			working = append(working, c)
		}
	}
	return working
}

func (w *fleet) allWork(t *testing.T, when string) {
	t.Helper()
	for _, c := range w.clients {
		if err := w.meets(t, c); err != nil {
			t.Errorf("%s, the client from %s with the name %s is refused: %v", when, c.of, c.name, err)
		}
	}
}

// TestWideningTheBundleFirst publishes a wider CA bundle before it replaces the CA: clients of the narrow bundle still
// count.
func TestWideningTheBundleFirst(t *testing.T) {
	w := newFleet(t)
	old := w.userKubeconfig(t, "pinny:password123")
	widened := func() {
		t.Helper()
		w.ipTLS(t, "set", "--secret=lock-a", "--ca-bundle="+w.bundles["ab"]).ok(t)
		w.addClients(t)
	}
	refuses := func(code int, text string, args ...string) {
		t.Helper()
		if got := w.ipTLS(t, args...); got.code != code || !strings.Contains(got.errOut, text) {
			t.Errorf("%s ended with %d, want %d with %q:\n%s%s", strings.Join(args, " "), got.code, code, text, got.out,
				got.errOut)
		}
		w.allWork(t, "after "+strings.Join(args, " "))
	}
	widened()
	refuses(6, "waits for", "set", "--secret=lock-b")
	refuses(6, "which does not verify the new certificate", "set", "--secret=lock-b", "--ca-bundle="+w.bundles["b"],
		"--kubeconfigs="+old)
	refuses(6, "waits for", "set", "--secret=lock-b", "--ca-bundle="+w.bundles["b"], "--activate-after=168h")

	// With --allow, and back: broken clients work again, so the rollback is not refused.
	w.ipTLS(t, "set", "--secret=lock-b", "--allow=OldClientsBreak").ok(t)
	if w.meets(t, w.clients[0]) == nil {
		t.Fatal("the test does not test it")
	}
	refuses(0, "", "undo")
}

// TestNamesOfRevisions checks that a certificate is refused if it lacks a name that clients may use.
func TestNamesOfRevisions(t *testing.T) {
	w := newFleet(t)
	got := w.ipTLS(t, "set", "--secret=lock-a-one")
	if got.code != 3 || !strings.Contains(got.errOut, secondName) || !strings.Contains(got.errOut, "NameNotCovered") {
		t.Errorf("set ended with %d: %s", got.code, got.errOut)
	}
	got = w.ipTLS(t, "set", "--secret=lock-b-one", "--ca-bundle="+w.bundles["b"]).exits(t, 3, secondName)
	w.allWork(t, "after what was refused")
	w.ipTLS(t, "set", "--secret=lock-a-one", "--allow=OldClientsBreak").ok(t)
}
