package concierge

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

// flood is a handler with login limits whose logins wait until release is closed.
type flood struct {
	*LoginLimits
	handler   http.Handler
	release   chan struct{}
	now, most atomic.Int64
	log       testkit.Buffer
}

func newFlood() *flood {
	f := &flood{
		LoginLimits: NewLoginLimits(flowcontrol.New(flowcontrol.LimitsFor(1<<30, 2))),
		release:     make(chan struct{}),
	}
	f.handler = f.apply(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if bytes.Equal(body, []byte("slow")) {
			if n := f.now.Add(1); n > f.most.Load() {
				f.most.Store(n)
			}
			<-f.release
			f.now.Add(-1)
		}
		w.WriteHeader(http.StatusCreated)
	}), defaultGroups.Login, serializer.NewCodecFactory(runtime.NewScheme()))
	return f
}

// send sends a request from an address, as forwarded by the API server.
func (f *flood) send(ctx context.Context, resource, from, body string) *httptest.ResponseRecorder {
	return f.sendAs(ctx, resource, from, body, "")
}

// sendAs is send with a content type.
func (f *flood) sendAs(ctx context.Context, resource, from, body, kind string) *httptest.ResponseRecorder {
	group := defaultGroups.Login.Group
	if resource == "whoamirequests" {
		group = defaultGroups.Identity.Group
	}
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: group, APIVersion: "v1alpha1", Resource: resource, Verb: "create",
	})
	ctx = klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&f.log))))
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(body))
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	req.Header.Set("X-Forwarded-For", "made.up, "+from)
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	response := httptest.NewRecorder()
	f.handler.ServeHTTP(response, req)
	return response
}

// TestBodiesAreCheapToDecode checks that other bodies are refused for every resource.
func TestBodiesAreCheapToDecode(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]int{
		"": 201, "application/json": 201, "application/json; charset=utf-8": 201, "application/vnd.kubernetes.protobuf": 201,
		"application/yaml": 415, "application/yaml;application/json": 415, "application/cbor": 415, ";": 415,
	} {
		f := newFlood()
		for _, resource := range []string{"tokencredentialrequests", "whoamirequests"} {
			if got := f.sendAs(t.Context(), resource, "192.0.2.1", "a: b", kind).Code; got != want {
				t.Errorf("%s in %q: want %d, got %d", resource, kind, want, got)
			}
		}
	}
}

// there returns the number of running and waiting logins.
func (f *flood) there() int {
	usage := f.usage()
	return usage.Taken + usage.Waiting
}

// TestAFloodOfLogins sends slow logins: from one address, and then from very many.
func TestAFloodOfLogins(t *testing.T) {
	t.Parallel()
	const slots, perSource, all = 24, 24, 40
	f := newFlood()
	var group sync.WaitGroup
	var codes sync.Map
	count := func(code int) int64 {
		n, _ := codes.LoadOrStore(code, new(atomic.Int64))
		return n.(*atomic.Int64).Load()
	}
	begin := func(from string) {
		group.Go(func() {
			response := f.send(t.Context(), "tokencredentialrequests", from, "slow")
			n, _ := codes.LoadOrStore(response.Code, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			if response.Code == http.StatusTooManyRequests && response.Header().Get("Retry-After") != "1" {
				t.Errorf("a refused client gets no Retry-After: %v", response.Header())
			}
		})
	}
	for range 200 {
		begin("192.0.2.1")
	}
	testkit.Eventually(t, time.Minute, func() error {
		if got := count(429); got != 200-perSource || f.now.Load() != slots/2 {
			return fmt.Errorf("%d are refused, %d go on", got, f.now.Load())
		}
		return nil
	})
	if response := f.send(t.Context(), "tokencredentialrequests", "192.0.2.2", "quick"); response.Code != 201 {
		t.Errorf("a login from elsewhere: %d", response.Code)
	}
	for range 50 {
		if response := f.send(t.Context(), "whoamirequests", "192.0.2.1", ""); response.Code != 201 {
			t.Fatalf("a request that is no login: %d", response.Code)
		}
	}
	for i := range 1000 {
		begin(fmt.Sprintf("198.18.%d.%d", i/250, i%250))
	}
	testkit.Eventually(t, time.Minute, func() error {
		if got := count(429); got != 1200-all || f.now.Load() != slots || f.there() != all {
			return fmt.Errorf("%d are refused, %d go on, %d are there", got, f.now.Load(), f.there())
		}
		return nil
	})
	close(f.release)
	group.Wait()
	if count(201) != all || f.most.Load() > slots || f.there() != 0 {
		t.Errorf("%d were served, %d at a time, and %d are left", count(201), f.most.Load(), f.there())
	}
	if got := strings.Count(f.log.String(), "Refused logins"); got != 1 {
		t.Errorf("it is logged %d times", got)
	}
	if f.refused.Load() != 1200-all {
		t.Errorf("%d are counted", f.refused.Load())
	}
	for kind, most := range map[string]int{"tokencredentialrequests": maxLoginBody, "whoamirequests": maxOtherBody} {
		if response := f.send(t.Context(), kind, "192.0.2.1", strings.Repeat("a", most+1)); response.Code != 413 {
			t.Errorf("%s with a body that is too long: %d", kind, response.Code)
		}
		if response := f.send(t.Context(), kind, "192.0.2.1", strings.Repeat("a", most)); response.Code != 201 {
			t.Errorf("%s with a long body: %d", kind, response.Code)
		}
	}
}

func TestSourceOfALogin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, remote string
		certificate  bool
		forwarded    []string
		want         string
	}{
		{"is what the API server appended", "10.0.0.1:1", true, []string{"1.1.1.1, 192.0.2.7"}, "192.0.2.7"},
		{"is in the last of several headers", "10.0.0.1:1", true, []string{"192.0.2.7", "192.0.2.8"}, "192.0.2.8"},
		{"is the connection's without a certificate", "10.0.0.1:1", false, []string{"192.0.2.7"}, "10.0.0.1"},
		{"is the connection's without a header", "10.0.0.1:1", true, nil, "10.0.0.1"},
		{"is a network with IPv6", "10.0.0.1:1", true, []string{"2001:db8:1:2:3::4"}, "2001:db8:1:2::/64"},
		{"is the same in both notations", "10.0.0.1:1", true, []string{"::ffff:192.0.2.7"}, "192.0.2.7"},
		{"is one for all that make no sense", "10.0.0.1:1", true, []string{"x"}, "unknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
			req.RemoteAddr = test.remote
			if test.certificate {
				req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
			}
			req.Header["X-Forwarded-For"] = test.forwarded
			same.Values(t, "", test.want, source(req))
		})
	}
}

// TestUnauthenticatedClientsMayProbe checks what a client other than the front proxy may send: the kubelet's probes,
// one at a time. The connection is closed after the response.
func TestUnauthenticatedClientsMayProbe(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("front proxy CA", time.Now(), time.Hour))(t)
	began, release := make(chan struct{}), make(chan struct{})
	port := listener.New(flowcontrol.New(flowcontrol.APILimitsFor(flowcontrol.DefaultMemory, 2)))
	server := httptest.NewUnstartedServer(port.Handler(onlyFrontProxy(
		http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.RawQuery == "slow" {
				close(began)
				<-release
			}
			w.WriteHeader(http.StatusOK)
		}),
		func(leaf *x509.Certificate) bool { return leaf.Subject.CommonName == "front-proxy-client" },
	), tooMany))
	server.Listener = port.Listen(server.Listener)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	client := func(name string) *http.Client {
		pair := must.Get(ca.IssueClient(certs.ClientIdentity{Username: name}, time.Now(), time.Hour))(t)
		certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
		return &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
		}}}
	}
	ask := func(client *http.Client, method, path string) (code int, closes bool) {
		req := must.Get(http.NewRequestWithContext(t.Context(), method, server.URL+path, http.NoBody))(t)
		res, err := client.Do(req)
		must.Do(t, err)
		defer res.Body.Close() //nolint:errcheck // only the head counts
		return res.StatusCode, res.Header.Get("Connection") == "close" || res.Close
	}
	const logins = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests"
	for _, test := range []struct {
		method, path, who string
		want              int
	}{
		{"GET", "/livez", "other", 200},
		{"HEAD", "/readyz?verbose", "other", 200},
		{"POST", "/livez", "other", 403},
		{"GET", "/livez/x", "other", 403},
		{"GET", "/apis", "other", 403},
		{"POST", logins, "other", 403},
		{"POST", logins, "front-proxy-client", 200},
	} {
		if got, _ := ask(client(test.who), test.method, test.path); got != test.want {
			t.Errorf("%s %s by %s: want %d, got %d", test.method, test.path, test.who, test.want, got)
		}
	}
	if got := port.Open() - port.Unauthenticated(); got != 1 {
		t.Errorf("want the connection of the front proxy known, got %d", got)
	}
	other, responses := client("other"), make(chan int, 1)
	go func() {
		code, _ := ask(other, http.MethodGet, "/livez?slow")
		responses <- code
	}()
	<-began
	if second, _ := ask(other, http.MethodGet, "/livez"); second != http.StatusTooManyRequests {
		t.Errorf("want the second probe at a time refused on one connection, got %d", second)
	}
	close(release)
	if first := <-responses; first != http.StatusOK {
		t.Errorf("want the first probe served, got %d", first)
	}
}

// clusterIssuing is a fake of the cluster's own signer.
type clusterIssuing struct {
	err   error
	asked []certs.ClientIdentity
}

func (c *clusterIssuing) IssueClientCertificate(
	_ context.Context, identity certs.ClientIdentity, _ time.Duration,
) (*certs.KeyPair, error) {
	c.asked = append(c.asked, identity)
	return &certs.KeyPair{CertPEM: []byte("the cluster's")}, c.err
}

func TestWhoSigns(t *testing.T) {
	t.Parallel()
	const group = "login.concierge.pinniped.dev"
	refused := fmt.Errorf("%w: Denied", signer.ErrRefused)
	for _, test := range []struct {
		name                 string
		at                   string // the API group of the proxy through which the login goes
		noCluster            bool
		clusterErr, agentErr error
		want                 string
		asksCluster          bool
		warns, says          string
	}{
		{name: "the cluster, for a login at the API server", want: signedByCluster, asksCluster: true},
		{name: "the agent, for a login at the proxy", at: group, want: signedByAgent},
		{
			name: "the cluster, for a login at the proxy of another installation",
			at:   "login.concierge.other.example.com", want: signedByCluster, asksCluster: true,
		},
		{name: "the agent, when it is not configured otherwise", noCluster: true, want: signedByAgent},
		{
			name: "the agent, when the cluster does not respond", clusterErr: errors.New("no response"),
			want: signedByAgent, asksCluster: true, warns: "the cluster's own signer issues no certificates at the moment",
		},
		{
			name: "none, when the cluster refuses the user", clusterErr: refused, asksCluster: true,
			says: "the request was refused",
		},
		{
			name: "none, when both cannot", clusterErr: errors.New("no response"), agentErr: signer.ErrNotLoaded,
			asksCluster: true, says: "no response",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cluster, agent := &clusterIssuing{err: test.clusterErr}, &issuing{err: test.agentErr}
			i := issuers{agent: agent, cluster: cluster, group: group}
			if test.noCluster {
				i.cluster = nil
			}
			client := &user.DefaultInfo{Name: user.Anonymous}
			if test.at != "" {
				client.Extra = map[string][]string{signer.AtProxyKey: {test.at}}
			}
			var warnings said
			ctx := warning.WithWarningRecorder(genericapirequest.WithUser(t.Context(), client), &warnings)
			ann := certs.ClientIdentity{Username: "ann", Groups: []string{"dev"}, OrganizationalUnits: []string{"k=v"}}
			pair, by, err := i.issue(ctx, ann, time.Minute)
			if test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) ||
				test.says == "" && (err != nil || pair == nil) || by != test.want {
				t.Errorf("signed by %q, %v", by, err)
			}
			var asked []certs.ClientIdentity
			if test.asksCluster {
				asked = []certs.ClientIdentity{ann}
			}
			same.Values(t, "the cluster was asked for", asked, cluster.asked)
			if got := strings.Join(warnings, ";"); !strings.Contains(got, test.warns) || test.warns == "" && got != "" {
				t.Errorf("want a warning with %q, got %q", test.warns, got)
			}
		})
	}
}
