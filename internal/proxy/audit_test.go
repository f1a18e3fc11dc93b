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
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
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
	return must.Get(NewAuditLog(policyFile(t, auditPolicy), to))(t)
}

func policyFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestAuditLog(t *testing.T) {
	t.Parallel()
	const secret, pods = "eyJ-a-token-of-somebody", "/api/v1/namespaces/d/pods"
	const complete, started, from = "ResponseComplete Metadata jane ", "ResponseStarted Metadata jane ", " from 127.0.0.1 "
	for _, test := range []struct {
		name, path string
		header     http.Header
		do         func(t *testing.T, p *proxy) // instead of a GET of jane's
		want       []string
	}{
		{
			name: "records who asked for what, and what came of it", path: pods + "/one",
			want: []string{complete + "get " + pods + "/one" + from + "OK  allow"},
		},
		{
			name: "records as whom", path: pods, header: http.Header{"Impersonate-User": {"joe"}},
			want: []string{complete + "as joe list " + pods + from + "OK  allow"},
		},
		{
			name: "records what was refused", path: "/api/v1/nodes",
			want: []string{complete + "list /api/v1/nodes" + from + `Forbidden nodes is forbidden: User "jane" cannot list resource "nodes" ` +
				`in API group "" at the cluster scope: ` + identity.DecisionMadeBy + " forbid"},
		},
		{
			name: "records which impersonation was refused", path: pods,
			header: http.Header{"Impersonate-User": {"joe"}, "Impersonate-Group": {"ops"}},
			want: []string{complete + "list " + pods + from + `Forbidden pods is forbidden: User "jane" cannot ` +
				`impersonate-on:user-info:list resource "pods" in API group "" in the namespace "d": ` + identity.DecisionMadeBy},
		},
		{
			name: "records of unauthenticated clients, without their token",
			do: func(t *testing.T, p *proxy) {
				t.Helper()
				p.get(t, p.client(t, nil), pods+"?access_token="+secret, http.Header{"Authorization": {"Bearer " + secret}})
			},
			want: []string{"ResponseStarted Metadata  list " + pods + "?access_token=[removed]" + from + "Unauthorized Unauthorized"},
		},
		{
			name: "believes nobody about where a request comes from", path: pods,
			header: http.Header{"X-Forwarded-For": {"10.9.8.7"}, "X-Real-Ip": {"10.9.8.7"}},
			want:   []string{complete + "list " + pods + from + "OK  allow"},
		},
		{
			name: "follows the policy, as far as it can",
			do: func(t *testing.T, p *proxy) {
				t.Helper()
				p.get(t, p.as(t, "jane"), "/version", nil)
				p.do(t, p.as(t, "jane"), "POST", "/api/v1/namespaces/d/secrets", nil, `{"data":"`+secret+`"}`)
			},
			want: []string{"ResponseComplete RequestResponse jane create /api/v1/namespaces/d/secrets" + from + "OK  allow"},
		},
		{
			name: "records when a stream begins and ends", path: pods + "?watch=1",
			want: []string{
				started + "watch " + pods + "?watch=1" + from + "OK  allow", complete + "watch " + pods + "?watch=1" + from + "OK  allow",
			},
		},
		{
			name: "records of commands in pods",
			do: func(t *testing.T, p *proxy) {
				t.Helper()
				conn, _ := p.switches(t, execWith("base64url.bearer.authorization.k8s.io."+secret+", v5.channel.k8s.io"))
				_ = conn.Close()
			},
			want: []string{
				started + "get " + pods + "/x/exec" + from + "Switching Protocols  allow",
				complete + "get " + pods + "/x/exec" + from + "Switching Protocols  allow",
			},
		},
		{
			name: "records of an API server that cannot be asked",
			do: func(t *testing.T, p *proxy) {
				t.Helper()
				p.api.set(func() { p.api.failing = 503 })
				p.get(t, p.as(t, "jane"), pods, http.Header{"Impersonate-User": {"joe"}})
			},
			want: []string{complete + "list " + pods + from + "Service Unavailable " +
				"cannot reach the API server to authorize the impersonation"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := &auditFile{}
			p := startProxy(t, func(_ *proxy, o *Options) { o.Audit = newAuditLog(t, file) })
			p.api.allows(allowing("get pods", "list pods", "watch pods", "create secrets", "get /version", "get pods/exec",
				"create pods/exec", "impersonate users"))
			p.api.serves(echoOr(func(http.ResponseWriter, *http.Request) {}))
			if test.do != nil {
				test.do(t, p)
			} else {
				p.get(t, p.as(t, "jane"), test.path, test.header)
			}
			var got []string
			for _, one := range file.events(t, len(test.want)) {
				got = append(got, event(one))
			}
			same.Values(t, "", test.want, got)
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
		p.api.serves(func(w http.ResponseWriter, req *http.Request) {
			id := req.Header.Get("Audit-Id")
			if id == "" {
				id = "made-there"
			}
			w.Header().Set("Audit-Id", id)
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

func TestAuditPolicyIsChecked(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"no rules":       "apiVersion: audit.k8s.io/v1\nkind: Policy\n",
		"another kind":   "apiVersion: v1\nkind: ConfigMap\n",
		"unknown levels": "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]\n",
		"no YAML":        "a: [\n",
	} {
		if _, err := NewAuditLog(policyFile(t, content), io.Discard); err == nil ||
			!strings.Contains(err.Error(), "reading the audit policy") {
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
