package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
)

// auditFile is the output of an audit log.
type auditFile struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (f *auditFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.Write(p)
}

func (f *auditFile) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.String()
}

// event summarizes an audit event in one line.
func event(e auditv1.Event) string {
	said := []string{string(e.Stage), string(e.Level), e.User.Username}
	if e.ImpersonatedUser != nil {
		said = append(said, "as "+e.ImpersonatedUser.Username)
	}
	said = append(said, e.Verb, e.RequestURI, "from "+strings.Join(e.SourceIPs, ","))
	if e.ResponseStatus != nil {
		said = append(said, http.StatusText(int(e.ResponseStatus.Code)), e.ResponseStatus.Message)
	}
	if decision := e.Annotations["authorization.k8s.io/decision"]; decision != "" {
		said = append(said, decision)
	}
	return strings.TrimSpace(strings.Join(said, " "))
}

// events waits until n events were written, and returns them.
func (f *auditFile) events(t *testing.T, n int) []auditv1.Event {
	t.Helper()
	var found []auditv1.Event
	eventually(t, func() bool {
		found = nil
		for line := range strings.Lines(f.String()) {
			var one auditv1.Event
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatalf("not an event: %q: %v", line, err)
			}
			found = append(found, one)
		}
		return len(found) >= n
	})
	return found
}

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: [/version]
- level: RequestResponse
  resources: [{group: "", resources: [secrets]}]
- level: Metadata
`

func newAuditLog(t *testing.T, to io.Writer) *AuditLog {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := NewAuditLog(path, to)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestAuditLog(t *testing.T) {
	t.Parallel()
	const secret, pods = "eyJ-a-token-of-somebody", "/api/v1/namespaces/d/pods"
	for _, test := range []struct {
		name string
		do   func(t *testing.T, p *proxy)
		want []string
	}{
		{"records who asked for what, and what came of it", func(t *testing.T, p *proxy) {
			t.Helper()
			p.get(t, p.as(t, "jane"), pods+"/one", nil)
		}, []string{"ResponseComplete Metadata jane get " + pods + "/one from 127.0.0.1 OK  allow"}},
		{"records as whom", func(t *testing.T, p *proxy) {
			t.Helper()
			p.get(t, p.as(t, "jane"), pods, http.Header{"Impersonate-User": {"joe"}})
		}, []string{"ResponseComplete Metadata jane as joe list " + pods + " from 127.0.0.1 OK  allow"}},
		{"records what was refused", func(t *testing.T, p *proxy) {
			t.Helper()
			p.get(t, p.as(t, "jane"), "/api/v1/nodes", nil)
		}, []string{
			`ResponseComplete Metadata jane list /api/v1/nodes from 127.0.0.1 Forbidden nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope: ` + identity.DecisionMadeBy + " forbid",
		}},
		{"records which impersonation was refused", func(t *testing.T, p *proxy) {
			t.Helper()
			p.get(t, p.as(t, "jane"), pods, http.Header{"Impersonate-User": {"joe"}, "Impersonate-Group": {"ops"}})
		}, []string{"ResponseComplete Metadata jane list " + pods + ` from 127.0.0.1 Forbidden pods is forbidden: User "jane" cannot impersonate-on:user-info:list ` +
			`resource "pods" in API group "" in the namespace "d": ` + identity.DecisionMadeBy}},
		{"records of unauthenticated clients, without their token", func(t *testing.T, p *proxy) {
			t.Helper()
			p.get(t, p.client(t, nil), pods+"?access_token="+secret, http.Header{"Authorization": {"Bearer " + secret}})
		}, []string{
			"ResponseStarted Metadata  list " + pods + "?access_token=[removed] from 127.0.0.1 Unauthorized Unauthorized",
		}},
		{"believes nobody about where a request comes from", func(t *testing.T, p *proxy) {
			t.Helper()
			p.get(t, p.as(t, "jane"), pods, http.Header{"X-Forwarded-For": {"10.9.8.7"}, "X-Real-Ip": {"10.9.8.7"}})
		}, []string{"ResponseComplete Metadata jane list " + pods + " from 127.0.0.1 OK  allow"}},
		{"follows the policy, as far as it can", func(t *testing.T, p *proxy) {
			t.Helper()
			p.get(t, p.as(t, "jane"), "/version", nil)
			p.do(t, p.as(t, "jane"), "POST", "/api/v1/namespaces/d/secrets", nil, `{"data":"`+secret+`"}`)
		}, []string{"ResponseComplete RequestResponse jane create /api/v1/namespaces/d/secrets from 127.0.0.1 OK  allow"}},
		{"records when a stream begins and ends", func(t *testing.T, p *proxy) {
			t.Helper()
			p.get(t, p.as(t, "jane"), pods+"?watch=1", nil)
		}, []string{
			"ResponseStarted Metadata jane watch " + pods + "?watch=1 from 127.0.0.1 OK  allow",
			"ResponseComplete Metadata jane watch " + pods + "?watch=1 from 127.0.0.1 OK  allow",
		}},
		{"records of commands in pods", func(t *testing.T, p *proxy) {
			t.Helper()
			conn := p.raw(t, clientCertificate(t, p.signerCA, "jane"), "GET "+pods+"/x/exec HTTP/1.1\nHost: "+
				"proxy\nConnection: Upgrade\nUpgrade: websocket\n"+
				"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io."+secret+", v5.channel.k8s.io\n\n")
			res, err := http.ReadResponse(readerOf(conn), nil)
			if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("want the protocol switched, got %v, %v", res, err)
			}
			_ = res.Body.Close()
			_ = conn.Close()
		}, []string{
			"ResponseStarted Metadata jane get " + pods + "/x/exec from 127.0.0.1 Switching Protocols  allow",
			"ResponseComplete Metadata jane get " + pods + "/x/exec from 127.0.0.1 Switching Protocols  allow",
		}},
		{"records of an API server that cannot be asked", func(t *testing.T, p *proxy) {
			t.Helper()
			p.api.set(func() { p.api.failing = 503 })
			p.get(t, p.as(t, "jane"), pods, http.Header{"Impersonate-User": {"joe"}})
		}, []string{"ResponseComplete Metadata jane list " + pods + " from 127.0.0.1 Service Unavailable " +
			"cannot reach the API server to authorize the impersonation"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := &auditFile{}
			p := startProxy(t, func(_ *proxy, o *Options) { o.Audit = newAuditLog(t, file) })
			p.api.set(func() {
				p.api.allow = allowing(
					"get pods",
					"list pods",
					"watch pods",
					"create secrets",
					"get /version",
					"get pods/exec",
					"create pods/exec",
					"impersonate users",
				)
				p.api.serve = func(w http.ResponseWriter, req *http.Request) {
					if req.Header.Get("Upgrade") != "" {
						echo(req.Header.Get("Upgrade"))(w, req)
					}
				}
			})
			test.do(t, p)
			var got []string
			for _, one := range file.events(t, len(test.want)) {
				got = append(got, event(one))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, token := range []string{secret, upstreamToken, agentToken} {
				if strings.Contains(file.String(), token) {
					t.Errorf("there is a token in the log: %s", file)
				}
			}
		})
	}
}

// TestAuditIDs checks that with the audit log a request has one Audit-ID here, at the API server and at the client, and
// otherwise the API server's.
func TestAuditIDs(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{true, false} {
		file := &auditFile{}
		p := startProxy(t, func(_ *proxy, o *Options) {
			if on {
				o.Audit = newAuditLog(t, file)
			}
		})
		p.api.set(func() {
			p.api.serve = func(w http.ResponseWriter, req *http.Request) {
				id := req.Header.Get("Audit-Id")
				if id == "" {
					id = "made-there"
				}
				w.Header().Set("Audit-Id", id)
			}
		})
		for given, header := range map[string]http.Header{"": nil, "from-the-client": {"Audit-Id": {"from-the-client"}}} {
			got := p.get(t, p.as(t, "jane"), "/api/v1/nodes", header)
			requests := p.api.requests()
			sent := requests[len(requests)-1].Header["Audit-Id"]
			responded := got.Header["Audit-Id"]
			if len(responded) != 1 || given != "" && responded[0] != given {
				t.Errorf("audit log %t: want one ID, %q if that is not empty, got %v", on, given, responded)
			}
			switch {
			case !on && given == "" && sent != nil:
				t.Errorf("want no ID made up without an audit log, got %v", sent)
			case on:
				if diff := cmp.Diff(responded, sent); diff != "" {
					t.Errorf("(-responded +sent):\n%s", diff)
				}
				eventually(t, func() bool { return strings.Contains(file.String(), `"auditID":"`+responded[0]+`"`) })
			}
		}
	}
}

// TestOriginalUserWithAndWithoutAuditLog checks that the original user is in the API server's audit log either way.
func TestOriginalUserWithAndWithoutAuditLog(t *testing.T) {
	t.Parallel()
	for _, log := range []*AuditLog{nil, newAuditLog(t, io.Discard)} {
		p := startProxy(t, func(_ *proxy, o *Options) { o.Audit = log })
		p.get(t, p.as(t, "jane", "dev"), "/api/v1/nodes", http.Header{"Impersonate-User": {"joe"}})
		got := p.api.requests()[0].Header
		var original authenticationv1.UserInfo
		if err := json.Unmarshal(
			[]byte(got.Get("Impersonate-Extra-Original-User-Info.impersonation-Proxy.concierge.pinniped.dev")),
			&original,
		); err != nil {
			t.Fatalf("want the original user, got %v: %v", got, err)
		}
		if original.Username != "jane" || got.Get("Impersonate-User") != "joe" {
			t.Errorf("want jane acting as joe, got %+v as %s", original, got.Get("Impersonate-User"))
		}
	}
}

func TestAuditPolicyIsChecked(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"no rules":       "apiVersion: audit.k8s.io/v1\nkind: Policy\n",
		"another kind":   "apiVersion: v1\nkind: ConfigMap\n",
		"unknown levels": "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]\n",
		"no YAML":        "a: [\n",
	} {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewAuditLog(path, io.Discard); err == nil || !strings.Contains(err.Error(), "reading the audit policy") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := NewAuditLog(filepath.Join(t.TempDir(), "missing"), io.Discard); err == nil {
		t.Error("a file that is not there was read")
	}
}

func TestWithoutToken(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"/api/v1/pods":                          "/api/v1/pods",
		"/api/v1/pods?limit=5&continue=abc":     "/api/v1/pods?limit=5&continue=abc",
		"/x?access_token=abc":                   "/x?access_token=[removed]",
		"/x?a=1&Token=abc&b=2":                  "/x?a=1&Token=[removed]&b=2",
		"/x?access%5ftoken=abc":                 "/x?access%5ftoken=[removed]",
		"/x?%zz=abc":                            "/x?%zz=[removed]",
		"/x?fieldSelector=metadata.name%3Dblue": "/x?fieldSelector=metadata.name%3Dblue",
	} {
		if got := withoutToken(uri); got != want {
			t.Errorf("%s: got %s, want %s", uri, got, want)
		}
	}
}

// TestAuditLogSurvivesLoad writes lines of many concurrent requests.
func TestAuditLogSurvivesLoad(t *testing.T) {
	t.Parallel()
	file := &auditFile{}
	p := startProxy(t, func(_ *proxy, o *Options) { o.Audit = newAuditLog(t, file) })
	var clients sync.WaitGroup
	for range 8 {
		client := p.as(t, "jane")
		clients.Go(func() {
			for range 25 {
				p.get(t, client, "/api/v1/nodes", nil)
			}
		})
	}
	clients.Wait()
	for _, one := range file.events(t, 200) {
		if one.User.Username != "jane" || time.Since(one.StageTimestamp.Time) > time.Minute {
			t.Fatalf("got %+v", one)
		}
	}
}
