package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

const unauthorizedBody = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}` + "\n"

func TestClientCertificates(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	serving := must.Get(p.signerCA.IssueServing(certs.SANs{DNSNames: []string{"jane"}}, time.Now(), time.Hour))(t)
	now := time.Now()
	for _, test := range []struct {
		name        string
		certificate *tls.Certificate
		wantUser    string // "": 401
	}{
		{"accepts one of the signer CA", clientCertificate(t, p.signerCA, "jane", "dev"), "jane"},
		{"accepts one of the cluster's CA", clientCertificate(t, p.clusterCA, "jane", "dev"), "jane"},
		{"refuses an expired one", certificateFrom(t, p.signerCA, now.Add(-2*time.Hour), "jane"), ""},
		{"refuses an early one", certificateFrom(t, p.signerCA, now.Add(certs.Backdate+time.Minute), "jane"), ""},
		{"refuses one of an unknown CA", clientCertificate(t, newCA(t, "signer CA"), "jane"), ""},
		{"refuses one for servers", keyPair(t, serving), ""},
		// pkg/certs rejects an empty name, so use a blank one.
		{"refuses one without a common name", clientCertificate(t, p.signerCA, " ", "system:masters"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(p.api.requests())
			client := p.client(t, test.certificate)
			for range 2 { // the second time from the cache
				got := p.get(t, client, "/api/v1/nodes", nil)
				if test.wantUser == "" {
					if got.Code != http.StatusUnauthorized || got.Body != unauthorizedBody {
						t.Errorf("want 401, got %d: %s", got.Code, got.Body)
					}
					if n := len(p.api.requests()) - before; n != 0 {
						t.Errorf("want nothing sent on, got %d requests", n)
					}
					continue
				}
				arrived := p.api.requests()
				last := arrived[len(arrived)-1]
				if got.Code != http.StatusOK || last.Header.Get("Impersonate-User") != test.wantUser {
					t.Fatalf("want user %q, got %d and %v", test.wantUser, got.Code, last)
				}
				same.Values(t, "groups", []string{"dev", "system:authenticated"}, last.Header["Impersonate-Group"])
				id := last.Header.Get("Impersonate-Extra-Authentication.kubernetes.io%2fcredential-Id")
				if !strings.HasPrefix(id, "X509SHA256=") {
					t.Errorf("want the credential's id, got %q", id)
				}
			}
		})
	}
}

func TestCertificateExpiresInTheCache(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, still(clock))
	client := p.client(t, p.jane(t)) // one connection
	p.get(t, client, "/api/v1/nodes", nil).require(t, http.StatusOK, "want 200")
	clock.Step(2 * time.Hour)
	p.get(t, client, "/api/v1/nodes", nil).check(t, http.StatusUnauthorized, "want 401 after the certificate's end")
}

func TestClientCAsChange(t *testing.T) {
	t.Parallel()
	p := startProxy(t, func(_ *proxy, o *Options) { o.ProbeInterval = 10 * time.Millisecond })
	bySigner, byCluster := p.as(t, "jane"), p.client(t, clientCertificate(t, p.clusterCA, "joe"))
	code := func(c *http.Client) int { return p.get(t, c, "/api/v1/nodes", nil).Code }
	if code(bySigner) != 200 || code(byCluster) != 200 {
		t.Fatal("want both CAs trusted")
	}
	p.signer.Store(newCA(t, "next").CertPEM())
	if got := code(bySigner); got != 401 {
		t.Errorf("want the old signer CA distrusted on an open connection, got %d", got)
	}
	p.signer.Store([]byte("no PEM"))
	if a, b := code(bySigner), code(byCluster); a != 401 || b != 200 {
		t.Errorf("want a bad signer bundle to disturb nobody else, got %d and %d", a, b)
	}
	p.signer.Store([]byte(nil))
	if a, b := code(bySigner), code(byCluster); a != 401 || b != 200 {
		t.Errorf("want no signer to disturb nobody else, got %d and %d", a, b)
	}
	p.signer.Store(p.signerCA.CertPEM())
	if got := code(bySigner); got != 200 {
		t.Errorf("want the signer CA trusted again, got %d", got)
	}
	published := func(bundle string) { p.api.set(func() { p.api.configMap["client-ca-file"] = bundle }) }
	published("broken")
	published(string(newCA(t, "other").CertPEM()))
	eventually(t, func() bool { return code(byCluster) == 401 })
	if got := code(bySigner); got != 200 {
		t.Errorf("want the signer CA still trusted, got %d", got)
	}
}

// TestNoClientCAs has a cluster publish no settings, then some, and then none again.
func TestNoClientCAs(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	settings := p.api.configMap
	p.api.configMap = nil
	p.start(t, func(_ *proxy, o *Options) { o.ProbeInterval = 10 * time.Millisecond })
	bySigner, byCluster := p.as(t, "jane"), p.client(t, clientCertificate(t, p.clusterCA, "joe"))
	code := func(c *http.Client) int { return p.get(t, c, "/api/v1/nodes", nil).Code }
	if a, b := code(bySigner), code(byCluster); a != 200 || b != 401 {
		t.Errorf("want the signer CA alone trusted, got %d and %d", a, b)
	}
	p.api.set(func() { p.api.configMap = settings })
	eventually(t, func() bool { return code(byCluster) == 200 })
	var asked atomic.Int32
	p.api.set(func() {
		p.api.configMap = nil
		p.api.anonymous = func(string) int { asked.Add(1); return 403 }
	})
	eventually(t, func() bool { return asked.Load() > 8 })
	if got := code(byCluster); got != 200 {
		t.Errorf("want what was published last still trusted, got %d", got)
	}
}

func TestFrontProxy(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	frontCA := newCA(t, "front proxy CA")
	for key, value := range map[string]string{
		"requestheader-client-ca-file":       string(frontCA.CertPEM()),
		"requestheader-allowed-names":        `["front-proxy"]`,
		"requestheader-username-headers":     `["X-Remote-User","X-Custom-User"]`,
		"requestheader-uid-headers":          `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	} {
		p.api.configMap[key] = value
	}
	p.start(t)
	claim := http.Header{
		"X-Remote-User":      {"jane"},
		"X-Remote-Uid":       {"u-1"},
		"X-Remote-Group":     {"a", "b"},
		"X-Remote-Extra-Foo": {"bar"},
		"X-Custom-User":      {"root"},
	}
	got := p.get(t, p.client(t, clientCertificate(t, frontCA, "front-proxy")), "/api/v1/nodes", claim)
	if got.Code != 200 {
		t.Fatalf("want 200, got %d: %s", got.Code, got.Body)
	}
	arrived := p.api.requests()[0]
	want := carried("jane", "a", "b", "system:authenticated")
	want["Impersonate-Uid"], want["Impersonate-Extra-Foo"] = []string{"u-1"}, []string{"bar"}
	checkIdentity(t, arrived, want)
	if arrived.Header.Get("X-Custom-User") != "" {
		t.Error("want the custom front proxy header removed")
	}
	if got := p.get(t, p.client(t, clientCertificate(t, frontCA, "other")), "/api/v1/nodes", claim); got.Code != 401 {
		t.Errorf("want a name that is not allowed refused, got %d", got.Code)
	}
	p.get(t, p.as(t, "joe"), "/api/v1/nodes", claim).require(t, 200, "want 200")
	if last := p.api.requests()[1]; last.Header.Get("Impersonate-User") != "joe" ||
		last.Header.Get("X-Custom-User") != "" {
		t.Errorf("want a user's claim ignored and removed, got %v", last.Header)
	}
}

func TestBearerTokens(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.tokens["good"] = authenticationv1.UserInfo{
		Username: "system:serviceaccount:ns:sa",
		UID:      "u-1",
		Groups:   []string{"system:serviceaccounts", "system:authenticated"},
		Extra:    map[string]authenticationv1.ExtraValue{"accessKeyId": {"AKIA"}},
	}
	p.api.tokens["nobody"] = authenticationv1.UserInfo{}
	long := strings.Repeat("a", identity.MaxToken)
	p.api.tokens[long] = p.api.tokens["good"]
	p.api.tokens[long+"a"] = p.api.tokens["good"]
	client := p.client(t, nil)
	for _, test := range []struct {
		name, authorization string
		want                int
	}{
		{"accepts a token", "Bearer good", 200},
		{"accepts it again", "bearer good", 200},
		{"refuses another", "Bearer bad", 401},
		{"refuses a token of nobody", "Bearer nobody", 401},
		{"accepts a long token", "Bearer " + long, 200},
		{"refuses one that is too long", "Bearer " + long + "a", 401},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := p.get(t, client, "/api/v1/nodes", http.Header{"Authorization": {test.authorization}})
			if got.Code != test.want {
				t.Fatalf("want %d, got %d", test.want, got.Code)
			}
			if test.want == 401 && got.Body != unauthorizedBody {
				t.Errorf("want %s, got %s", unauthorizedBody, got.Body)
			}
		})
	}
	want := carried("system:serviceaccount:ns:sa", "system:serviceaccounts", "system:authenticated")
	want["Impersonate-Uid"], want["Impersonate-Extra-Access%4bey%49d"] = []string{"u-1"}, []string{"AKIA"}
	arrived := p.api.requests()
	if len(arrived) != 3 {
		t.Fatalf("want three requests sent on, got %d", len(arrived))
	}
	for _, one := range arrived {
		checkIdentity(t, one, want)
	}
	same.Values(t, "reviews", []string{"good", "bad", "nobody", long}, p.api.reviewed)
}

// awayError is the error of an unavailable authenticator.
type awayError struct{}

func (awayError) Error() string     { return "the issuer is away" }
func (awayError) Unavailable() bool { return true }

// TestOtherBearerTokens authenticates tokens that the cluster does not know, from the header and from a WebSocket
// subprotocol.
func TestOtherBearerTokens(t *testing.T) {
	t.Parallel()
	file := &auditFile{}
	log := newAuditLog(t, file)
	p := startProxy(t, func(_ *proxy, o *Options) {
		o.Audit = log
		o.BearerTokens = func(cluster authenticator.Token) authenticator.Token {
			return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
				switch token {
				case "ours":
					audit.AddAuditAnnotation(ctx, "example.com/by", "ci")
					return &authenticator.Response{User: &user.DefaultInfo{Name: "ann", Groups: []string{"dev"}}}, true, nil
				case "refused":
					return nil, false, errors.New("refused")
				case "away":
					return nil, false, awayError{}
				}
				return cluster.AuthenticateToken(ctx, token)
			})
		}
	})
	p.api.tokens["cluster"] = authenticationv1.UserInfo{Username: "jane"}
	client := p.client(t, nil)
	for _, test := range []struct {
		token   string
		code    int
		message string
	}{
		{"ours", 200, ""},
		{"cluster", 200, ""},
		{"refused", 401, "Unauthorized"},
		{"other", 401, "Unauthorized"},
		{"away", 503, "the bearer token's authenticator cannot be reached"},
	} {
		got := p.get(t, client, "/api/v1/nodes", http.Header{"Authorization": {"Bearer " + test.token}})
		if got.Code != test.code || !strings.Contains(got.Body, test.message) {
			t.Errorf("%s: got %d %s", test.token, got.Code, got.Body)
		}
	}
	protocol := bearerProtocol("ours")
	p.exchange(t, nil, execWith(protocol+", v5.channel.k8s.io"))
	var users []string
	for _, one := range p.api.requests() {
		users = append(users, strings.Join(identityOf(one)["Impersonate-User"], ","))
		for _, values := range one.Header {
			if strings.Contains(strings.Join(values, " "), "ours") || strings.Contains(strings.Join(values, " "), protocol) {
				t.Error("the token was sent on")
			}
		}
	}
	same.Values(t, "users", []string{"ann", "jane", "ann"}, users)
	var vouched []string
	for _, event := range file.events(t, 7) { // refusals and the start of the upgrade have other stages
		if event.Stage == auditv1.StageResponseComplete {
			vouched = append(vouched, event.User.Username+" "+event.Annotations["example.com/by"])
		}
	}
	same.Values(t, "audit", []string{"ann ci", "jane ", "ann ci"}, vouched)
	same.Values(t, "reviews", []string{"cluster", "other"}, p.api.reviewed)
}

func TestAnonymous(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy func(path string) int
		want   map[string]int
	}{
		{
			name:   "admits all where the API server does",
			policy: func(string) int { return 403 },
			want: map[string]int{
				"/healthz": 200, "/readyz": 200, "/livez": 200, "/api/v1/nodes": 200, "/healthz/etcd": 200, loginPath: 200,
			},
		},
		{
			name:   "admits token credential requests alone where the API server admits nothing",
			policy: func(string) int { return 401 },
			want: map[string]int{
				"/healthz": 401, "/readyz": 401, "/livez": 401, "/api/v1/nodes": 401, loginPath: 200, loginPath + "/x/status": 401,
				"/apis/login.concierge.other.dev/v1alpha1/tokencredentialrequests":               401,
				"/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests":                  401,
				"/apis/login.concierge.pinniped.dev/v1alpha1/namespaces/tokencredentialrequests": 401,
			},
		},
		{
			name: "admits health checks apart from the rest",
			policy: func(path string) int {
				if path == "/livez" || path == "/healthz" {
					return 200
				}
				return 401
			},
			want: map[string]int{
				"/healthz": 200, "/readyz": 401, "/livez": 200, "/healthz/etcd": 401, "/api/v1/nodes": 401, loginPath: 200,
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			p.api.anonymous = test.policy
			p.start(t)
			for path, want := range test.want {
				before := len(p.api.requests())
				got := p.get(t, p.client(t, nil), path, http.Header{"Authorization": {"Basic cm9vdDpyb290"}})
				if got.Code != want {
					t.Errorf("%s: want %d, got %d", path, want, got.Code)
				}
				arrived := p.api.requests()[before:]
				if want == 401 {
					if got.Body != unauthorizedBody || len(arrived) != 0 {
						t.Errorf("%s: want the 401 body and nothing sent on, got %s and %d", path, got.Body, len(arrived))
					}
					continue
				}
				checkIdentity(t, arrived[0], carried("system:anonymous", "system:unauthenticated"))
			}
		})
	}
}

func TestAnonymousPolicyIsFollowed(t *testing.T) {
	t.Parallel()
	p := startProxy(t, func(_ *proxy, o *Options) { o.ProbeInterval = 10 * time.Millisecond })
	code := func() int { return p.get(t, p.client(t, nil), "/api/v1/nodes", nil).Code }
	if got := code(); got != 200 {
		t.Fatalf("want 200, got %d", got)
	}
	p.api.set(func() { p.api.anonymous = func(string) int { return 401 } })
	eventually(t, func() bool { return code() == 401 })
	var failed atomic.Int32
	p.api.set(func() { p.api.anonymous = func(string) int { failed.Add(1); return 500 } })
	eventually(t, func() bool { return failed.Load() > 3 })
	if got := code(); got != 401 {
		t.Errorf("want the last response kept, got %d", got)
	}
}
