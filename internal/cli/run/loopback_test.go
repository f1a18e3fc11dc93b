package run

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// farEnd is a cluster that records the requests.
type farEnd struct {
	*httptest.Server
	handler http.HandlerFunc // nil: responds "ok"

	mu          sync.Mutex
	requests    []*http.Request
	connections int
}

func newFarEnd(t *testing.T) *farEnd {
	t.Helper()
	f := &farEnd{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, req)
		f.mu.Unlock()
		if f.handler != nil {
			f.handler(w, req)
			return
		}
		_, _ = io.WriteString(w, "ok")
	}))
	f.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			f.mu.Lock()
			f.connections++
			f.mu.Unlock()
		}
	}
	f.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	f.EnableHTTP2 = true
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

func (f *farEnd) last(t *testing.T) *http.Request {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) == 0 {
		t.Fatal("nothing has arrived")
	}
	return f.requests[len(f.requests)-1]
}

func (f *farEnd) count() (requests, connections int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests), f.connections
}

// testRun is a run with a proxy in front of a cluster.
type testRun struct {
	*writer
	far     *farEnd
	refused chan struct{}
}

func newTestRun(t *testing.T, prefix string) *testRun {
	t.Helper()
	r := &testRun{writer: newWriter(t), far: newFarEnd(t), refused: make(chan struct{}, 100)}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.far.Certificate().Raw})
	config := &rest.Config{
		Host:            r.far.URL + prefix,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		BearerToken:     "not this",
	}
	proxy, err := startLoopback(config, time.Now, func() { r.refused <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.close)
	r.proxy = proxy
	return r
}

func (r *testRun) use(t *testing.T, credential *login.Credential) {
	t.Helper()
	if err := r.write(credential); err != nil {
		t.Fatal(err)
	}
}

// client returns the client and URL that a program gets from the run's kubeconfig.
func (r *testRun) client(t *testing.T) (*http.Client, string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", r.files.path(kubeconfigName))
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client, config.Host
}

func send(t *testing.T, client *http.Client, url string, header http.Header) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it is read to its end
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func account(token string) *login.Credential {
	return &login.Credential{Token: token, Expiry: time.Now().Add(time.Hour), Impersonate: &kubeconfig.Impersonation{
		User: "ann", UID: "7", Groups: []string{"dev", "ops"}, Extra: map[string][]string{"example.com/team": {"blue"}},
	}}
}

func TestLoopbackAddsTheCredential(t *testing.T) {
	t.Parallel()
	r := newTestRun(t, "/clusters/one")
	r.use(t, account("of-the-account"))
	client, url := r.client(t)
	if code, body := send(
		t,
		client,
		url+"/api/v1/pods?a=1;b=2&c=%20",
		http.Header{"User-Agent": {"report.py"}},
	); code != 200 ||
		body != "ok" {
		t.Fatalf("got %d %s", code, body)
	}
	got := r.far.last(t)
	if got.RequestURI != "/clusters/one/api/v1/pods?a=1;b=2&c=%20" || got.Host != r.far.Listener.Addr().String() {
		t.Errorf("got %s of %s", got.RequestURI, got.Host)
	}
	want := http.Header{
		"Authorization": {"Bearer of-the-account"}, "User-Agent": {"report.py"}, "Accept-Encoding": {"gzip"},
		"Impersonate-User": {"ann"}, "Impersonate-Uid": {"7"}, "Impersonate-Group": {"dev", "ops"},
		"Impersonate-Extra-Example.com%2fteam": {"blue"},
	}
	if diff := cmp.Diff(want, got.Header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	// The next credential needs no new kubeconfig and no new connection.
	before := r.read(t, kubeconfigName)
	if strings.Contains(before, "of-the-account") || strings.Contains(before, "ann\n    as") {
		t.Errorf("the kubeconfig has the credential:\n%s", before)
	}
	r.use(t, account("the-next"))
	send(t, client, url, nil)
	if got := r.far.last(t).Header.Get("Authorization"); got != "Bearer the-next" {
		t.Errorf("got %q", got)
	}
	if _, connections := r.far.count(); connections != 1 || r.read(t, kubeconfigName) != before {
		t.Errorf("%d connections; the kubeconfig is %s", connections, r.read(t, kubeconfigName))
	}
}

func TestLoopbackRefuses(t *testing.T) {
	t.Parallel()
	r := newTestRun(t, "")
	r.use(t, account("secret"))
	client, url := r.client(t)
	unrelated := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	for _, header := range []http.Header{
		{},
		{"Authorization": {"Bearer "}},
		{"Authorization": {"Bearer secret"}},
		{"Authorization": {r.proxy.token}},
		{"Authorization": {"Bearer x", "Bearer " + r.proxy.token}},
	} {
		if code, body := send(t, unrelated, url, header); code != 401 ||
			!strings.Contains(body, `the token of this run's kubeconfig`) {
			t.Errorf("%v: got %d %s", header, code, body)
		}
	}
	for _, name := range []string{"Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-A"} {
		code, body := send(t, client, url, http.Header{name: {"bob"}})
		if code != 403 || !strings.Contains(body, "cannot impersonate another user") {
			t.Errorf("%s: got %d %s", name, code, body)
		}
	}
	if requests, _ := r.far.count(); requests > 0 {
		t.Errorf("%d requests arrived", requests)
	}
	// Without impersonation in the login, impersonation headers reach the cluster.
	r.use(t, &login.Credential{Token: "plain"})
	if code, _ := send(t, client, url, http.Header{"Impersonate-User": {"bob"}}); code != 200 ||
		r.far.last(t).Header.Get("Impersonate-User") != "bob" {
		t.Errorf("got %d, and %v arrived", code, r.far.last(t).Header)
	}
	r.far.Close()
	if code, body := send(t, client, url, nil); code != 502 || !strings.Contains(body, "connecting to ") {
		t.Errorf("a cluster that is away: %d %s", code, body)
	}
	r.proxy.close()
	if _, err := unrelated.Get(url); err == nil { //nolint:bodyclose // refused
		t.Error("it answers after the end of the run")
	}
}

func TestLoopbackPresentsCertificates(t *testing.T) {
	t.Parallel()
	ca, err := certs.NewCA("CA", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r := newTestRun(t, "")
	var client *http.Client
	var url string
	for i := range 2 {
		pair, err := ca.IssueClient(certs.ClientIdentity{Username: fmt.Sprintf("ann-%d", i)}, time.Now(), 5*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		credential := &login.Credential{
			ClientCertificateData: string(pair.CertPEM), ClientKeyData: string(pair.KeyPEM), Expiry: pair.NotAfter,
		}
		r.use(t, credential)
		if due, renewed := renewAt(credential, time.Now(), true); !renewed || time.Until(due) > 4*time.Minute {
			t.Errorf("renewed at %s: %v", due, renewed)
		}
		if client == nil {
			client, url = r.client(t)
		}
		send(t, client, url, nil)
		got := r.far.last(t)
		if len(got.TLS.PeerCertificates) != 1 || got.TLS.PeerCertificates[0].Subject.CommonName != fmt.Sprintf("ann-%d", i) ||
			got.Header.Get("Authorization") != "" {
			t.Errorf("request %d is of %v, %v", i, got.TLS.PeerCertificates, got.Header)
		}
	}
}

// TestLoopbackWaitsForTheNextCredential checks a credential that expired while the computer slept, and one that the
// cluster refuses.
func TestLoopbackWaitsForTheNextCredential(t *testing.T) {
	t.Parallel()
	r := newTestRun(t, "")
	expired := account("old")
	expired.Expiry = time.Now().Add(-time.Minute)
	r.use(t, expired)
	client, url := r.client(t)
	go func() {
		<-r.refused
		_ = r.write(account("new"))
	}()
	send(t, client, url, nil)
	if got := r.far.last(t).Header.Get("Authorization"); got != "Bearer new" {
		t.Errorf("got %q", got)
	}
	r.far.handler = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
	if code, _ := send(t, client, url, nil); code != 401 || len(r.refused) != 1 {
		t.Errorf("got %d, refused %d times", code, len(r.refused))
	}
}

// TestRefusedCredentialsAreRenewed checks a cluster that refuses the credential long before it expires.
func TestRefusedCredentialsAreRenewed(t *testing.T) {
	t.Parallel()
	r := newTestRun(t, "")
	session := &fakeSession{life: time.Hour}
	first, _ := session.Credential(t.Context(), 0)
	r.use(t, first)
	k := &keeper{
		session: session,
		writer:  r.writer,
		now:     time.Now,
		retry:   time.Millisecond,
		refused: r.refused,
		warn:    t.Logf,
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); k.run(ctx, first) }()
	r.far.handler = func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") == "Bearer token-1" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	client, url := r.client(t)
	code := 401
	for deadline := time.Now().Add(20 * time.Second); code == 401 && time.Now().Before(deadline); {
		code, _ = send(t, client, url, nil)
	}
	if code != 200 {
		t.Errorf("got %d", code)
	}
	stop()
	<-ended
}

func TestLoopbackStreams(t *testing.T) {
	t.Parallel()
	r := newTestRun(t, "")
	r.use(t, account("x"))
	client, url := r.client(t)
	next := make(chan struct{})
	r.far.handler = func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, "one\n")
			_ = http.NewResponseController(w).Flush()
			<-next
			_, _ = io.WriteString(w, "two\n")
			return
		}
		w.Header().Set("Upgrade", "SPDY/3.1")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // the test is over
		line, _ := both.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(watch.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "one\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	close(next)
	if line, err := lines.ReadString('\n'); err != nil || line != "two\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	_ = watch.Body.Close()

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.proxy.caBundle)
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}).
		DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the test is over
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = fmt.Fprintf(conn, "POST /exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\n"+
		"Upgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n", r.proxy.token)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := reader.ReadString('\n'); response.StatusCode != 101 || err != nil || line != "echo hello\n" {
		t.Errorf("got %d, %q, %v", response.StatusCode, line, err)
	}
	if got := r.far.last(t).Header.Get("Impersonate-User"); got != "ann" {
		t.Errorf("the upgrade is of %q", got)
	}
}

func TestNoProxyBeforeOurOwn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		environ []string
		proxied bool
		want    []string // both variables
	}{
		{[]string{"A=b", "KUBECONFIG=x"}, true, []string{"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1"}},
		{[]string{"NO_PROXY=.corp"}, true, []string{"NO_PROXY=.corp,127.0.0.1", "no_proxy=.corp,127.0.0.1"}},
		{
			[]string{"no_proxy=a", "NO_PROXY=b"},
			true,
			[]string{"NO_PROXY=b,127.0.0.1", "no_proxy=a,127.0.0.1"},
		},
		{[]string{"NO_PROXY=.corp"}, false, []string{"NO_PROXY=.corp"}},
	} {
		w := newWriter(t)
		if test.proxied {
			w.proxy = &loopback{}
		}
		got := (&Options{Environ: func() []string { return test.environ }}).environment(w)
		slices.Sort(got)
		var relevant []string
		for _, variable := range got {
			if strings.HasPrefix(strings.ToLower(variable), "no_proxy=") {
				relevant = append(relevant, variable)
			}
		}
		if diff := cmp.Diff(test.want, relevant); diff != "" ||
			!slices.Contains(got, "KUBECONFIG="+w.files.path(kubeconfigName)) {
			t.Errorf("%v (-want +got):\n%s", got, diff)
		}
	}
}
