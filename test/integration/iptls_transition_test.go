package integration

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// turn is a world before a rotation: a certificate is in service, and Secret rotate-new has a certificate of another
// CA.
type turn struct {
	*world
	newCA     *certs.CA
	newBundle string // path of a file
	oldPair   *certs.KeyPair
	newPair   *certs.KeyPair
	identity  tls.Certificate
}

func newTurn(t *testing.T, generated bool) *turn {
	t.Helper()
	w := &turn{world: needsCluster(t), newCA: newCA(t, "Next Corporate CA", time.Now())}
	if generated {
		w.generatedOnly(t)
	} else {
		w.oldPair = w.issue(t, "localhost")
		w.external(t, "rotate-old", pairData(w.oldPair))
	}
	w.newPair = issueAt(t, w.newCA, time.Now(), 90*24*time.Hour, "localhost")
	w.putSecret(t, "rotate-new", pairData(w.newPair))
	w.newBundle = fileWith(t, "new-ca.pem", w.newCA.CertPEM())
	w.identity = w.certificateOf(t, "ann")
	return w
}

// set sets the certificate of the new CA, and returns the result.
func (w *turn) set(t *testing.T, code int, flags ...string) result {
	t.Helper()
	return w.asAdmin(t, append([]string{
		"ip-tls", "set", "--secret=rotate-new", "--ca-bundle=" + w.newBundle, "--timeout=40s",
	}, flags...)...).exits(t, code, "")
}

// publishedBundle returns the CA bundle in the status.
func (w *world) publishedBundle(t *testing.T) []byte {
	t.Helper()
	bundle := must.Get(
		base64.StdEncoding.DecodeString(w.strategy(t).Frontend.ImpersonationProxyInfo.CertificateAuthorityData),
	)(t)
	return bundle
}

// waitForBundle waits until the status has this CA bundle.
func (w *world) waitForBundle(t *testing.T, bundle []byte) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := w.publishedBundle(t); !certs.SameBundle(got, bundle) {
			return fmt.Errorf("another CA bundle is published:\n%s", got)
		}
		return nil
	})
}

// trusted returns the CA bundle of the cluster in a kubeconfig.
func trusted(t *testing.T, path string) []byte {
	t.Helper()
	config := must.Get(clientcmd.LoadFromFile(path))(t)
	return config.Clusters[currentCluster(t, path)].CertificateAuthorityData
}

// caller sends requests continuously, each on a new connection.
type caller struct {
	name     string
	path     string // its kubeconfig
	requests atomic.Int64
	failed   atomic.Pointer[error]
	stop     context.CancelFunc
	ended    sync.WaitGroup
}

// client creates a kubeconfig as users get it now, and sends requests with its CA bundle until it is stopped or fails.
func (w *turn) client(t *testing.T, name string) *caller {
	t.Helper()
	path := w.userKubeconfig(t, "pinny:password123")
	roots := trusting(trusted(t, path))
	transport := &http.Transport{
		TLSClientConfig:   clientTLS(roots, w.identity),
		DisableKeepAlives: true,
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := &caller{name: name, path: path, stop: cancel}
	c.ended.Go(func() {
		for ctx.Err() == nil {
			if err := fetch(transport, "https://"+w.endpoint()+"/version"); err != nil {
				c.failed.Store(&err)
				return
			}
			c.requests.Add(1)
		}
	})
	t.Cleanup(func() {
		cancel()
		c.ended.Wait()
	})
	return c
}

// kubeconfigOf returns a copy of a client's kubeconfig.
func kubeconfigOf(t *testing.T, c *caller) string {
	t.Helper()
	content := must.Get(os.ReadFile(c.path))(t)
	path := fileWith(t, "copy.kubeconfig", content)
	return path
}

// works waits for a few more responses, and fails the test if any request of the client has failed.
func (c *caller) works(t *testing.T) {
	t.Helper()
	until := c.requests.Load() + 5
	testkit.Eventually(t, 20*time.Second, func() error {
		if err := c.failed.Load(); err != nil {
			t.Fatalf("the client %s failed after %d requests: %v", c.name, c.requests.Load(), *err)
		}
		if got := c.requests.Load(); got < until {
			return fmt.Errorf("the client %s has got %d answers", c.name, got)
		}
		return nil
	})
}

func (c *caller) breaks(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if err := c.failed.Load(); err == nil || !strings.Contains((*err).Error(), "certificate") {
			return fmt.Errorf("the client %s goes on working", c.name)
		}
		return nil
	})
}

// leadsThrough checks that the user of a kubeconfig is pinny.
func (w *turn) leadsThrough(t *testing.T, c *caller) {
	t.Helper()
	if got := w.kubectlAs(t, c.path, "auth", "whoami",
		"--output=jsonpath={.status.userInfo.username}"); got.code != 0 ||
		got.out != "pinny" {
		t.Errorf("kubectl with the kubeconfig of %s ended with %d: %s%s", c.name, got.code, got.out, got.errOut)
	}
}

// TestChangeOfCAUnderTraffic changes the CA while clients with kubeconfigs from before, during and after it send
// requests. The change is interrupted, undone and repeated.
func TestChangeOfCAUnderTraffic(t *testing.T) {
	for _, generated := range []bool{false, true} {
		name := "from an external certificate"
		if generated {
			name = "from the generated certificate"
		}
		t.Run(name, func(t *testing.T) {
			w := newTurn(t, generated)
			oldBundle := w.publishedBundle(t)
			before := w.client(t, "before")
			before.works(t)
			w.leadsThrough(t, before) // makes it a revision in use

			w.set(t, 6)
			if got := w.asAdmin(t, "ip-tls", "undo", "--timeout=40s"); got.code != 0 ||
				!strings.Contains(got.errOut, "replaces") {
				t.Errorf("undo ended with %d: %s", got.code, got.errOut)
			}
			before.works(t)
			w.set(t, 6, "--activate-after=1h")
			if got := w.publishedBundle(t); !certs.SameBundle(got, certs.UnionBundle(oldBundle, w.newCA.CertPEM())) {
				t.Errorf("while the agent waits, %s is published", got)
			}
			during := w.client(t, "during")
			during.works(t)
			w.leadsThrough(t, during)

			fleet := kubeconfigOf(t, before)
			w.set(t, 6, "--kubeconfigs="+fleet, "--kubeconfigs="+during.path)
			before.works(t)
			w.asAdmin(t, "kubeconfig", "rotate", fleet).ok(t)
			w.set(t, 0, "--kubeconfigs="+fleet, "--kubeconfigs="+during.path)
			w.leadsThrough(t, &caller{name: "the fleet", path: fleet})
			if err := presents(w.agents[0].ProxyAddress(), w.newPair); err != nil {
				t.Error(err)
			}
			before.breaks(t)
			during.works(t)
			after := w.client(t, "after")
			after.works(t)
			if got := trusted(t, after.path); string(got) != string(w.newCA.CertPEM()) {
				t.Errorf("a kubeconfig made afterwards trusts %s", got)
			}
			w.leadsThrough(t, after)
			if got := w.set(t, 0); !strings.Contains(got.out, "unchanged") {
				t.Errorf("after the end: %s", got.out)
			}
			w.backToGenerated(t, after)
		})
	}
}

// backToGenerated waits for the clients of the certificate in service, and activates the generated one when they trust
// its CA.
func (w *turn) backToGenerated(t *testing.T, c *caller) {
	t.Helper()
	unset := func(code int, flags ...string) {
		t.Helper()
		w.asAdmin(t, append([]string{"ip-tls", "unset", "--timeout=40s"}, flags...)...).exits(t, code, "")
	}
	unset(6)
	c.works(t)
	w.asAdmin(t, "kubeconfig", "rotate", c.path).ok(t)
	unset(0, "--kubeconfigs="+c.path)
	w.leadsThrough(t, c)
	for _, agent := range w.agents {
		certificate, err := presented(agent.ProxyAddress())
		if err != nil || certificate.Issuer.CommonName != "Pinniped Impersonation Proxy Serving CA" {
			t.Errorf("%s presents %v, %v", agent.ProxyAddress(), certificate, err)
		}
	}
}

// TestUndo undoes changes on a real API server with a real agent.
func TestUndo(t *testing.T) {
	w := needsCluster(t)
	pair := w.issue(t, "localhost")
	w.external(t, "undone-cert", pairData(pair))
	w.use(t)
	undo := func(want string) {
		t.Helper()
		w.asAdmin(t, "ip-tls", "undo", "--timeout=40s", "--allow=OldClientsBreak").ok(t)
		tls := w.issuer(t).Spec.ImpersonationProxy.TLS
		if tls == nil && want != "" || tls != nil && tls.SecretName != want {
			t.Errorf("undo has left %+v, want Secret %q", tls, want)
		}
	}
	for range 2 {
		undo("")
		undo("undone-cert")
		if err := presents(w.agents[0].ProxyAddress(), pair); err != nil {
			t.Error(err)
		}
	}
	w.asAdmin(t, "ip-tls", "unset", "--timeout=40s").exits(t, 6, "") // it breaks clients
	undo("undone-cert")
	w.asAdmin(t, "ip-tls", "unset", "--timeout=40s", "--allow=OldClientsBreak").ok(t)
	undo("undone-cert")
	// set takes over the fields that undo has written, although undo sends another kind of request.
	w.putSecret(t, "undone-cert-2", pairData(w.issue(t, "localhost")))
	w.asAdmin(t, "ip-tls", "set", "--secret=undone-cert-2", "--timeout=40s").ok(t)
	w.kubectlDoes(t, "patch", "credentialissuer", w.issuer(t).Name,
		"--type=merge", `--patch={"spec":{"impersonationProxy":{"tls":{"secretName":"undone-cert"}}}}`)
	testkit.Eventually(t, 20*time.Second, func() error { // otherwise there is no evidence that it took effect
		return w.asAdmin(t, "ip-tls", "status").err()
	})
	undo("undone-cert-2")
}
