package login

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// handingProxy is a proxy that exchanges every token and publishes a CA bundle. The old CA has issued its certificate.
type handingProxy struct {
	*httptest.Server
	old, new *certs.CA

	mu          sync.Mutex
	document    func(http.ResponseWriter)
	lifetime    time.Duration // of credentials
	connections int
	requests    []string
}

func newHandingProxy(t *testing.T) *handingProxy {
	t.Helper()
	p := &handingProxy{lifetime: time.Second}
	var err error
	if p.old, err = certs.NewCA("old", time.Now().Add(-time.Hour), 200*time.Hour); err != nil {
		t.Fatal(err)
	}
	if p.new, err = certs.NewCA("new", time.Now(), 200*time.Hour); err != nil {
		t.Fatal(err)
	}
	p.publish(p.both())
	pair, err := p.old.IssueServing(
		certs.SANs{DNSNames: []string{"proxy.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}},
		time.Now(), 100*time.Hour,
	)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	p.Server = httptest.NewUnstartedServer(p)
	p.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.connections++
		}
	}
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

func (p *handingProxy) both() []byte { return append(p.old.CertPEM(), p.new.CertPEM()...) }

// publish sets the CA bundle that the proxy publishes.
func (p *handingProxy) publish(bundle []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.document = func(w http.ResponseWriter) {
		document, _ := trustbundle.Encode(bundle)
		_, _ = w.Write(document)
	}
}

func (p *handingProxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, req.Method+" "+req.URL.Path)
	if req.URL.Path == trustbundle.Path {
		p.document(w)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"status":{"credential":{"token":"t","expirationTimestamp":%q}}}`,
		time.Now().Add(p.lifetime).UTC().Format(time.RFC3339))
}

// seen returns the number of connections, and of requests for the document, since the last call.
func (p *handingProxy) seen() (connections, looks int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, request := range p.requests {
		if request == "GET "+trustbundle.Path {
			looks++
		}
	}
	connections = p.connections
	p.connections, p.requests = 0, nil
	return connections, looks
}

// follower is a user of the proxy, whose kubeconfig has comments and entries of other clusters.
type follower struct {
	*handingProxy
	t      *testing.T
	path   string
	cache  string
	args   []string // in addition to those for the exchange
	env    map[string]string
	now    time.Time
	in     io.Reader
	errOut io.Writer
	info   string
}

func newFollower(t *testing.T, args ...string) *follower {
	t.Helper()
	p := newHandingProxy(t)
	f := &follower{
		handingProxy: p,
		t:            t,
		path:         filepath.Join(t.TempDir(), "config"),
		cache:        filepath.Join(t.TempDir(), "credentials.yaml"),
		args:         args,
		now:          time.Now(),
		in:           strings.NewReader(""),
		errOut:       io.Discard,
	}
	f.env = map[string]string{"KUBECONFIG": f.path}
	f.write(f.path, f.content(p.old.CertPEM()))
	return f
}

func (f *follower) write(path, content string) {
	f.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		f.t.Fatal(err)
	}
}

func (f *follower) read(path string) string {
	f.t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(content)
}

func (f *follower) arguments(bundle []byte) []string {
	return append([]string{
		"login", "static", "--enable-concierge", "--concierge-authenticator-type=webhook",
		"--concierge-authenticator-name=local", "--token=token", "--credential-cache=" + f.cache,
		"--concierge-endpoint=" + f.URL, "--concierge-ca-bundle-data=" + base64.StdEncoding.EncodeToString(bundle),
	}, f.args...)
}

// content returns a kubeconfig in which the cluster and the user ann trust bundle, and the other entries the old CA.
func (f *follower) content(bundle []byte) string {
	data, old := base64.StdEncoding.EncodeToString(bundle), base64.StdEncoding.EncodeToString(f.old.CertPEM())
	return fmt.Sprintf(`# ann's file
apiVersion: v1
kind: Config
clusters:
- name: "of others"
  cluster: {server: %[1]q, certificate-authority-data: %[3]q}
- name: proxy   # the cluster
  cluster:
    certificate-authority-data: %[2]s
    server: %[1]s
contexts:
- {name: c, context: {cluster: proxy, user: ann}}
- {name: o, context: {cluster: "of others", user: ben}}
users:
- name: ben
  user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: pinniped, args: [login, static, --concierge-endpoint=%[1]s, --concierge-ca-bundle-data=%[3]s]}}
- name: ann
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: pinniped
      args: [%[4]s]
current-context: c
`, f.URL, data, old, strings.Join(f.arguments(bundle), ", "))
}

// login runs the login as kubectl does, with the arguments of a kubeconfig with bundle, and returns the output.
func (f *follower) login(bundle []byte) string {
	f.t.Helper()
	var out bytes.Buffer
	args := f.arguments(bundle)
	cmd := NewCommand(&factory.Factory{
		IOStreams: genericiooptions.IOStreams{In: f.in, Out: &out, ErrOut: f.errOut}, Args: args,
		Getenv: func(name string) string {
			if name == "KUBERNETES_EXEC_INFO" {
				return f.info
			}
			return f.env[name]
		},
		LookupEnv: func(string) (string, bool) { return "", false },
		HomeDir:   func() (string, error) { return filepath.Dir(f.path), nil },
		Now:       func() time.Time { return f.now },
	})
	cmd.SetArgs(args[1:])
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		f.t.Fatal(err)
	}
	var answer struct{ Status struct{ Token string } }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || answer.Status.Token != "t" {
		f.t.Errorf("kubectl gets %q, %v", out.String(), err)
	}
	return out.String()
}

// readable replaces CA bundles by names.
func (f *follower) readable(content string) string {
	return strings.NewReplacer(
		base64.StdEncoding.EncodeToString(f.both()), "BOTH", base64.StdEncoding.EncodeToString(f.old.CertPEM()), "OLD",
		base64.StdEncoding.EncodeToString(f.new.CertPEM()), "NEW",
	).Replace(content)
}

// wants fails unless the kubeconfig trusts bundle and is unchanged otherwise, and the login has made these connections
// and requests.
func (f *follower) wants(what string, bundle []byte, connections, looks int) {
	f.t.Helper()
	if got, want := f.read(f.path), f.content(bundle); got != want {
		f.t.Errorf("%s: (-want +got)\n%s", what, cmp.Diff(f.readable(want), f.readable(got)))
	}
	if c, l := f.seen(); c != connections || l != looks {
		f.t.Errorf("%s: %d connections and %d looks, not %d and %d", what, c, l, connections, looks)
	}
}

// TestFollow checks that a kubeconfig refreshes its trust bundle while the cluster changes its CA, step by step.
func TestFollow(t *testing.T) {
	t.Parallel()
	f := newFollower(t, "--follow")
	f.publish(f.old.CertPEM())
	f.login(f.old.CertPEM())
	f.wants("nothing to follow", f.old.CertPEM(), 1, 1)
	f.publish(f.both())
	f.now = f.now.Add(59 * time.Minute)
	f.login(f.old.CertPEM())
	f.wants("within the hour", f.old.CertPEM(), 1, 0)
	f.now = f.now.Add(2 * time.Minute)
	f.login(f.old.CertPEM())
	f.wants("overlap", f.both(), 1, 1)
	if info, err := os.Stat(f.path); err != nil || info.Mode() != 0o640 {
		t.Errorf("the kubeconfig has mode %v, %v", info.Mode(), err)
	}
	f.login(f.both())
	f.wants("followed", f.both(), 1, 1)

	f.lifetime = time.Hour
	f.now = time.Now().Add(3 * time.Hour)
	f.publish(f.old.CertPEM())
	f.login(f.both())
	f.wants("an older bundle", f.both(), 1, 1)
}

// TestFollowContactsNothing checks that a login from the cache makes no connection, even if the last check is old.
func TestFollowContactsNothing(t *testing.T) {
	t.Parallel()
	f := newFollower(t, "--follow")
	f.lifetime = time.Hour
	f.publish(f.old.CertPEM())
	f.login(f.old.CertPEM())
	f.seen()
	f.publish(f.both())
	for _, notes := range []string{".followed", ".asked"} { // another kubectl, much later
		if err := os.Remove(f.cache + notes); err != nil {
			t.Fatal(err)
		}
	}
	f.login(f.old.CertPEM())
	f.wants("a warm cache", f.old.CertPEM(), 0, 0)
}

// TestDoesNotFollow checks bundles that must be rejected, and invalid responses. No login fails.
func TestDoesNotFollow(t *testing.T) {
	t.Parallel()
	expired, err := certs.NewCA("expired", time.Now().Add(-48*time.Hour), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, prepare := range map[string]func(*follower){
		"which does not verify the proxy": func(f *follower) { f.publish(f.new.CertPEM()) },
		"with an expired CA":              func(f *follower) { f.publish(append(f.both(), expired.CertPEM()...)) },
		"that is not expected": func(f *follower) {
			f.env["PINNIPED_EXPECT_CA"] = strings.Repeat("0", 64)
		},
		"where the environment insists on something that cannot be read": func(f *follower) { f.env["PINNIPED_EXPECT_CA"] = "what?" },
		"of an API server": func(f *follower) {
			f.document = func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) }
		},
		"of another place": func(f *follower) {
			f.document = func(w http.ResponseWriter) {
				w.Header().Set("Location", "https://evil.example.com"+trustbundle.Path)
				w.WriteHeader(http.StatusFound)
			}
		},
		"which breaks off": func(f *follower) { f.document = func(http.ResponseWriter) { panic(http.ErrAbortHandler) } },
		"of rubbish":       func(f *follower) { f.document = func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{") } },
		"without the flag": func(f *follower) {
			f.args = nil
			f.write(f.path, f.content(f.old.CertPEM()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFollower(t, "--follow")
			prepare(f)
			f.login(f.old.CertPEM())
			if got := f.read(f.path); got != f.content(f.old.CertPEM()) {
				t.Errorf("the kubeconfig is\n%s", f.readable(got))
			}
		})
	}
}

// TestFollowFiles checks entries in the files of KUBECONFIG, and in a file in the arguments.
func TestFollowFiles(t *testing.T) {
	t.Parallel()
	t.Run("several", func(t *testing.T) {
		t.Parallel()
		f := newFollower(t, "--follow")
		whole := f.content(f.old.CertPEM())
		clusters, rest, _ := strings.Cut(whole, "contexts:\n")
		other := filepath.Join(filepath.Dir(f.path), "clusters")
		f.write(other, clusters)
		f.write(f.path, "apiVersion: v1\nkind: Config\ncontexts:\n"+rest)
		f.env["KUBECONFIG"] = strings.Join(
			[]string{other, filepath.Join(t.TempDir(), "none"), f.path},
			string(filepath.ListSeparator),
		)
		f.login(f.old.CertPEM())
		clusters, rest, _ = strings.Cut(f.content(f.both()), "contexts:\n")
		if f.read(other) != clusters || !strings.HasSuffix(f.read(f.path), rest) {
			t.Errorf("the files are\n%s\n%s", f.readable(f.read(other)), f.readable(f.read(f.path)))
		}
	})
	t.Run("named", func(t *testing.T) {
		t.Parallel()
		f := newFollower(t)
		named := filepath.Join(t.TempDir(), "my config")
		f.args = []string{"--follow=" + named}
		f.write(f.path, f.content(f.old.CertPEM()))
		f.write(named, f.content(f.old.CertPEM()))
		f.login(f.old.CertPEM())
		if f.read(f.path) != f.content(f.old.CertPEM()) || f.read(named) != f.content(f.both()) {
			t.Error("another file was changed than the one that is named")
		}
	})
}

// TestRefreshEntryByEntry checks that a cluster whose own CA bundle does not verify the proxy is unchanged.
func TestRefreshEntryByEntry(t *testing.T) {
	t.Parallel()
	f := newFollower(t, "--follow")
	mixed := func(bundle []byte) string {
		old := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(bundle) + "\n"
		foreign := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(f.new.CertPEM()) + "\n"
		return strings.Replace(f.content(bundle), old, foreign, 1)
	}
	f.write(f.path, mixed(f.old.CertPEM()))
	f.login(f.old.CertPEM())
	if got := f.read(f.path); got != mixed(f.both()) {
		t.Errorf("(-want +got)\n%s", cmp.Diff(f.readable(mixed(f.both())), f.readable(got)))
	}
}

// TestFollowThroughATunnel checks a server whose certificate has the name that kubectl gives, and not that of its
// address.
func TestFollowThroughATunnel(t *testing.T) {
	t.Parallel()
	f := newFollower(t, "--follow")
	f.URL = strings.Replace(f.URL, "127.0.0.1", "localhost", 1)
	tunnel := func(bundle []byte) string {
		return strings.ReplaceAll(f.content(bundle), "    server: ", "    tls-server-name: proxy.example.com\n    server: ")
	}
	f.write(f.path, tunnel(f.old.CertPEM()))
	f.info = fmt.Sprintf(`{"apiVersion":"client.authentication.k8s.io/v1","spec":{"cluster":{"server":%q,`+
		`"tls-server-name":"proxy.example.com","certificate-authority-data":%q}}}`,
		f.URL, base64.StdEncoding.EncodeToString(f.old.CertPEM()))
	f.login(f.old.CertPEM())
	if got := f.read(f.path); got != tunnel(f.both()) {
		t.Errorf("the kubeconfig is\n%s", f.readable(got))
	}
}

// FuzzNotes reads arbitrary notes files. Invalid content is ignored, and the next note is stored.
func FuzzNotes(f *testing.F) {
	f.Add([]byte(`{"a told":"2026-11-24T05:00:00Z"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, content []byte) {
		cache := filepath.Join(t.TempDir(), "c")
		if err := os.WriteFile(cache+".followed", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if !readNotes(cache, time.Now).note("x", time.Minute) || !readNotes(cache, time.Now).fresh("x") {
			t.Errorf("after %q nothing can be noted", content)
		}
	})
}
