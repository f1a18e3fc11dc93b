package fleet

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// proxy is a server that publishes a CA bundle.
type proxy struct {
	*httptest.Server
	old, new *certs.CA
	asked    atomic.Int64
}

func newCA(t *testing.T, name string, at time.Time) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(name, at, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// serve starts a server on loopback with a certificate of ca.
func serve(t *testing.T, ca *certs.CA, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{servingCertificate(t, ca)}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

func servingCertificate(t *testing.T, ca *certs.CA) tls.Certificate {
	t.Helper()
	pair, err := ca.IssueServing(certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// newProxy serves with the old CA and publishes both, as in the first phase of a rotation.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{old: newCA(t, "old", time.Now().Add(-time.Hour)), new: newCA(t, "new", time.Now())}
	p.Server = serve(t, p.old, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.asked.Add(1)
		answer(w, req, p.both())
	}))
	return p
}

func (p *proxy) both() []byte { return append(p.old.CertPEM(), p.new.CertPEM()...) }

func answer(w http.ResponseWriter, req *http.Request, bundle []byte) {
	if req.URL.Path != trustbundle.Path || req.Header.Get("Authorization") != "" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	document, _ := trustbundle.Encode(bundle)
	_, _ = w.Write(document)
}

// login returns a kubeconfig with a login through a proxy.
func login(server string, bundle []byte) string {
	data := base64.StdEncoding.EncodeToString(bundle)
	return fmt.Sprintf(`kind: Config
apiVersion: v1
# a comment
clusters:
- name: proxy
  cluster: {server: %q, certificate-authority-data: %q}
contexts:
- {name: c, context: {cluster: proxy, user: ann}}
users:
- name: ann
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: pinniped
      args: [login, static, --concierge-endpoint=%s, --concierge-ca-bundle-data=%s]
`, server, data, server, data)
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func options(paths ...string) Options {
	return Options{
		Places:      []Place{&Files{Paths: paths, LockTimeout: 5 * time.Second, Hidden: func(string) {}}},
		Concurrency: 64, ClusterTimeout: 20 * time.Second, Retries: 2, Progress: &ui.Progress{}, Now: time.Now,
	}
}

// outcomes returns the outcomes of the files, by name.
func outcomes(result *Result) map[string]string {
	all := map[string]string{}
	for _, item := range result.Items {
		text := string(item.Outcome)
		for _, entry := range item.Entries {
			if entry.Code != "" {
				text += " " + entry.Name + ":" + string(entry.Code)
			}
		}
		all[filepath.Base(item.Item.Shown)] = text
	}
	return all
}

func clusterOutcomes(result *Result) map[string]int {
	counts := map[string]int{}
	for _, cluster := range result.Clusters {
		counts[string(cluster.Outcome)]++
	}
	return counts
}

// TestTrustBundleIsPublished checks that only entries whose own CA bundle verifies the endpoint get the new one.
func TestTrustBundleIsPublished(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	other := newCA(t, "other", time.Now())
	folder := t.TempDir()
	for name, content := range map[string]string{
		"ann":      login(p.URL, p.old.CertPEM()),
		"ben":      login(p.URL, p.both()),
		"newest":   login(p.URL, append(p.old.CertPEM(), newCA(t, "newer", time.Now().Add(time.Hour)).CertPEM()...)),
		"foreign":  login(p.URL, other.CertPEM()),
		"insecure": fmt.Sprintf("kind: Config\nclusters:\n- name: proxy\n  cluster: {server: %q, insecure-skip-tls-verify: true}\n", p.URL),
		"http":     "kind: Config\nclusters:\n- name: proxy\n  cluster: {server: 'http://127.0.0.1:1'}\n",
		"notes":    "nothing",
	} {
		write(t, filepath.Join(folder, name), content)
	}
	result, err := Run(t.Context(), options(folder))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{
		"ann": "rotated", "ben": "current",
		"newest":  "skipped proxy:NotAccepted ann:NotAccepted",
		"foreign": "skipped proxy:NotAccepted ann:NotAccepted", "insecure": "skipped proxy:Insecure", "http": "unrelated",
	}, outcomes(result)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := read(t, filepath.Join(folder, "ann")); got != login(p.URL, p.both()) {
		t.Errorf("rotated to\n%s", got)
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the cluster was asked %d times", n)
	}
	o := options(folder)
	members, _ := certs.ParseBundle(p.both())
	for _, member := range members {
		o.ExpectedCAs = append(o.ExpectedCAs, certs.Fingerprint(member.Raw))
	}
	if result, err = Run(t.Context(), o); err != nil || outcomes(result)["newest"] != "rotated" {
		t.Errorf("with --expect-ca: %v, %v", outcomes(result), err)
	}
}

// TestExpectedCA checks that only bundles with the fingerprints that an administrator gives are accepted, as after a
// leak.
func TestExpectedCA(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	path := write(t, filepath.Join(t.TempDir(), "ann"), login(p.URL, p.old.CertPEM()))
	prints := func(cas ...*certs.CA) (all []string) {
		for _, ca := range cas {
			members, _ := certs.ParseBundle(ca.CertPEM())
			all = append(all, certs.Fingerprint(members[0].Raw))
		}
		return all
	}
	o := options(path)
	o.ExpectedCAs = prints(p.new)
	result, err := Run(t.Context(), o)
	if err != nil || result.Clusters[0].Outcome != ClusterFailed || read(t, path) != login(p.URL, p.old.CertPEM()) {
		t.Errorf("a bundle with another CA: %+v, %v", result.Clusters[0], err)
	}
	o.ExpectedCAs = prints(p.new, p.old)
	if result, err = Run(t.Context(), o); err != nil || outcomes(result)["ann"] != "rotated" {
		t.Errorf("a bundle with these CAs: %v, %v", outcomes(result), err)
	}
}

// TestHostileResponses checks that no response of a cluster changes a kubeconfig, uses many resources, or stops the
// rotation for others.
func TestHostileResponses(t *testing.T) {
	t.Parallel()
	good, ca := newProxy(t), newCA(t, "ca", time.Now().Add(-time.Hour))
	other := newCA(t, "attacker", time.Now())
	elsewhere := serve(
		t,
		ca,
		http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { answer(w, req, ca.CertPEM()) }),
	)
	document, err := trustbundle.Encode(append(ca.CertPEM(), other.CertPEM()...))
	if err != nil {
		t.Fatal(err)
	}
	handler := func(f func(http.ResponseWriter)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { f(w) })
	}
	forever := func(w http.ResponseWriter, piece string) {
		for {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
		}
	}
	for name, test := range map[string]struct {
		handler http.Handler
		issuer  *certs.CA
		says    string
	}{
		"endless body":    {handler: handler(func(w http.ResponseWriter) { forever(w, strings.Repeat("x", 1<<16)) }), says: "has no trust bundle endpoint"},
		"endless nesting": {handler: handler(func(w http.ResponseWriter) { forever(w, strings.Repeat("[", 1<<16)) }), says: "has no trust bundle endpoint"},
		"a redirect": {handler: handler(func(w http.ResponseWriter) {
			w.Header().Set("Location", elsewhere.URL+trustbundle.Path)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}), says: "has no trust bundle endpoint"},
		"a page":    {handler: handler(func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>\x1b[2J") }), says: "has no trust bundle endpoint"},
		"not found": {handler: http.NotFoundHandler(), says: "has no trust bundle endpoint"},
		"closed":    {handler: handler(func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }), says: "has no trust bundle endpoint"},
		"large header": {handler: handler(func(w http.ResponseWriter) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
			_, _ = w.Write(document)
		}), says: "exceeded"},
		"gzip without being asked": {handler: handler(func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8b\x08\x00")
		}), says: "has no trust bundle endpoint"},
		"a bundle that does not verify it": {handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer(w, req, other.CertPEM())
		}), says: "does not verify the certificate in service"},
		"no bundle, for system roots that do not verify it": {handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer(w, req, nil)
		}), says: "does not verify the certificate in service"},
		"another certificate": {handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer(w, req, append(ca.CertPEM(), other.CertPEM()...))
		}), issuer: other, says: "unknown authority"},
		"a broken body": {handler: handler(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write(document[:100])
		}), says: "EOF"},
		"errors": {handler: handler(func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }), says: "502"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			issuer := test.issuer
			if issuer == nil {
				issuer = ca
			}
			server := serve(t, issuer, test.handler)
			folder := t.TempDir()
			bad := write(t, filepath.Join(folder, "bad"), login(server.URL, ca.CertPEM()))
			write(t, filepath.Join(folder, "good"), login(good.URL, good.old.CertPEM()))
			o := options(folder)
			o.Sleep = func(context.Context, time.Duration) {}
			result, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{
				"bad": "skipped proxy:ClusterFailed ann:ClusterFailed", "good": "rotated",
			}, outcomes(result)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if failed := result.Clusters[0]; failed.Err == nil || !strings.Contains(failed.Err.Error(), test.says) ||
				strings.Contains(failed.Err.Error(), "\x1b") {
				t.Errorf("the cluster's error is %v", failed.Err)
			}
			if read(t, bad) != login(server.URL, ca.CertPEM()) {
				t.Error("the kubeconfig was changed")
			}
		})
	}
}

// TestNoProxiesAtAll checks that servers that are not impersonation proxies cause no failure, if no login uses them.
func TestNoProxiesAtAll(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "ca", time.Now())
	server := serve(t, ca, http.NotFoundHandler())
	path := write(t, filepath.Join(t.TempDir(), "admin"), fmt.Sprintf(
		"kind: Config\nclusters:\n- name: c\n  cluster: {server: %q, certificate-authority-data: %q}\n",
		server.URL, base64.StdEncoding.EncodeToString(ca.CertPEM())))
	result, err := Run(t.Context(), options(path))
	if err != nil || outcomes(result)["admin"] != "unrelated" || result.Clusters[0].Outcome != ClusterUnrelated {
		t.Errorf("%v, %+v, %v", outcomes(result), result.Clusters[0], err)
	}
}

// TestRetries checks that a failing cluster is retried with a pause, and not forever.
func TestRetries(t *testing.T) {
	t.Parallel()
	p := &proxy{old: newCA(t, "old", time.Now().Add(-time.Hour)), new: newCA(t, "new", time.Now())}
	var fail atomic.Int64
	p.Server = serve(t, p.old, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.asked.Add(1)
		if fail.Add(-1) >= 0 {
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		answer(w, req, p.both())
	}))
	path := write(t, filepath.Join(t.TempDir(), "ann"), login(p.URL, p.old.CertPEM()))
	o := options(path)
	o.DryRun = true
	var slept time.Duration
	o.Sleep = func(_ context.Context, d time.Duration) { slept += d }
	fail.Store(2)
	result, err := Run(t.Context(), o)
	if err != nil || outcomes(result)["ann"] != "rotated" || result.Clusters[0].Tries != 3 || slept < 6*time.Second {
		t.Errorf("%v after %d tries and %s, %v", outcomes(result), result.Clusters[0].Tries, slept, err)
	}
	fail.Store(3)
	result, err = Run(t.Context(), o)
	if err != nil || result.Clusters[0].Outcome != ClusterFailed || result.Clusters[0].Tries != 3 {
		t.Errorf("%v after %d tries, %v", outcomes(result), result.Clusters[0].Tries, err)
	}
	if read(t, path) != login(p.URL, p.old.CertPEM()) {
		t.Error("a dry run changed the kubeconfig")
	}
}

// TestContexts checks that in a large file only the entries of the chosen contexts are rotated.
func TestContexts(t *testing.T) {
	t.Parallel()
	east, west := newProxy(t), newProxy(t)
	entry := func(name string, p *proxy, bundle []byte) string {
		return fmt.Sprintf("- name: %s\n  cluster: {server: %q, certificate-authority-data: %q}\n",
			name, p.URL, base64.StdEncoding.EncodeToString(bundle))
	}
	big := func(eastBundle, westBundle []byte) string {
		return "kind: Config\ncontexts:\n- {name: prod/east, context: {cluster: east}}\n- {name: test/west, context: {cluster: west}}\n" +
			"clusters:\n" + entry(
			"east",
			east,
			eastBundle,
		) + entry(
			"west",
			west,
			westBundle,
		)
	}
	before := big(east.old.CertPEM(), west.old.CertPEM())
	path := write(t, filepath.Join(t.TempDir(), "big"), before)
	o := options(path)
	o.Contexts = []string{"prod*"}
	o.Places[0].(*Files).Contexts = o.Contexts
	result, err := Run(t.Context(), o)
	if err != nil || outcomes(result)["big"] != "rotated" || west.asked.Load() != 0 {
		t.Fatalf("%v, %v; west was asked %d times", outcomes(result), err, west.asked.Load())
	}
	if got := read(t, path); got != big(east.both(), west.old.CertPEM()) {
		t.Errorf("the file is\n%s", got)
	}
}
