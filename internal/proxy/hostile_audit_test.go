package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestAuditLogsAgree sends requests that could make the proxy's audit log differ from that of a real API server, and
// compares the two, request by request.
func TestAuditLogsAgree(t *testing.T) {
	t.Parallel()
	file := &auditFile{}
	log := newAuditLog(t, file)
	r := startReal(t, devcluster.Options{AuditPolicy: []byte(auditPolicy)}, func(r *realProxy) {
		r.options = func(o *Options) { o.Audit = log }
	})
	jane := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}
	must.Do(t, r.bind(t.Context(), "jane", "cluster-admin", jane))
	r.waitPermitted(t, authorizationv1.SubjectAccessReviewSpec{
		User: "jane", ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "*", Resource: "*"},
	})
	const namespace, maps = "/api/v1/namespaces/default/", "/api/v1/namespaces/default/configmaps"
	const object = `{"metadata":{"generateName":"a-"}}`
	const chunked, expects = "Transfer-Encoding: chunked", "Expect: 100-continue\nContent-Length: 34"
	const exec = "GET " + namespace + "pods/none/exec?command=sh&stdout=true HTTP/1.1\nHost: x\nConnection: Upgrade\n" +
		"Upgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\n" +
		"Sec-WebSocket-Protocol: v5.channel.k8s.io\n\n"
	asked, stay := 0, map[string]bool{} // by URI: requests that must not reach the API server
	for name, ask := range map[string]struct {
		user, request string
		want          int
		then          end
		stays         bool
	}{
		"a list":                   {"jane", get(maps), 200, readsAll, false},
		"what is not there":        {"jane", get(maps + "/none"), 404, readsAll, false},
		"what is not permitted":    {"mallory", get(maps), 403, readsAll, false}, // the read is forwarded first
		"a write that is not":      {"mallory", "DELETE " + maps + "/none HTTP/1.1\nHost: x\n\n", 403, readsAll, true},
		"a watch":                  {"jane", get(maps + "?watch=1&timeoutSeconds=1"), 200, readsAll, false},
		"a watch that is left":     {"jane", get(maps + "?watch=1"), 200, leaves, false},
		"as another":               {"jane", get(maps, "Impersonate-User: mallory"), 403, readsAll, false},
		"as another who may":       {"jane", get(maps, "Impersonate-User: root", "Impersonate-Group: system:masters"), 200, readsAll, false},
		"an ID of the client's":    {"jane", get(maps+"?own", "Audit-ID: of-the-client"), 200, readsAll, false},
		"a status of the client's": {"jane", posted(maps, expects, object), 201, readsAll, false},
		"one that is refused":      {"mallory", posted(maps, expects, ""), 403, readsAll, true},
		"chunks":                   {"jane", posted(maps, chunked, "22\n"+object+"\n0\n\n"), 201, readsAll, false},
		"trailers": {
			"jane", posted(maps, "Trailer: X-A\n"+chunked, "22\n"+object+"\n0\nX-A: b\n\n"), 201, readsAll, false,
		},
		"what is no object":       {"jane", posted(maps, "Content-Length: 34", strings.Repeat("x", 34)), 400, readsAll, false},
		"a body that breaks off":  {"jane", posted(maps, "Content-Length: 99", object), 400, breaksOff, true},
		"a chunk that breaks off": {"jane", posted(maps, chunked, "ff\n"+object), 400, breaksOff, true},
		"what is no chunk":        {"jane", posted(maps, chunked, "none\n\n"), 400, readsAll, true},
		"an upgrade to nothing":   {"jane", exec, 404, readsAll, false},
		"one that is not allowed": {"mallory", exec, 403, readsAll, true},
	} {
		asked++
		request := numbered(ask.request, asked)
		stay[strings.Fields(request)[1]] = ask.stays
		conn := r.raw(t, clientCertificate(t, r.signerCA, ask.user), request)
		if ask.then == breaksOff {
			must.Do(t, conn.CloseWrite())
		}
		responses := bufio.NewReader(conn)
		res, err := http.ReadResponse(responses, nil)
		if err == nil && res.StatusCode == http.StatusContinue {
			res, err = http.ReadResponse(responses, nil)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ask.then == leaves {
			_ = conn.Close()
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != ask.want {
			t.Errorf("%s: want %d, got %d", name, ask.want, res.StatusCode)
		}
	}
	streams, stream := r.rawHTTP2(t, r.jane(t)), uint32(1)
	for _, ask := range []struct {
		name, method, path string
		half               string // a part of a body
		want               int    // the status before the stream is reset
	}{
		{"a list", "GET", maps, "", 200}, // from here on the user is known
		{"a watch", "GET", maps + "?watch=1", "", 200},
		{"a body", "POST", maps, object, 100}, // the body is being read
	} {
		asked++
		fields := pseudo(ask.method, strings.Fields(numbered(ask.method+" "+ask.path+" -", asked))[1])
		stay[fields[3][1]] = ask.half != ""
		if ask.half != "" {
			fields = append(fields, [2]string{"content-type", "application/json"}, [2]string{"content-length", "68"},
				[2]string{"expect", "100-continue"})
		}
		streams.request(t, stream, ask.half != "", fields...)
		if ask.half != "" {
			must.Do(t, streams.WriteData(stream, false, []byte(ask.half)))
		}
		if got := streams.status(t, stream); got != ask.want {
			t.Errorf("%s by HTTP/2: want %d, got %d", ask.name, ask.want, got)
		}
		must.Do(t, streams.WriteRSTStream(stream, http2.ErrCodeCancel))
		stream += 2
	}
	completed := func(events []auditv1.Event) map[string]auditv1.Event {
		all := map[string]auditv1.Event{}
		for _, one := range events {
			if one.Stage == auditv1.StageResponseComplete && strings.HasPrefix(one.RequestURI, namespace) {
				all[string(one.AuditID)] = one
			}
		}
		return all
	}
	var ours, theirs map[string]auditv1.Event
	eventually(t, func() bool {
		ours = completed(file.events(t, asked))
		theirs = completed(eventsIn(t, r.cluster.AuditLog()))
		missing := 0
		for id, one := range ours {
			mayStay := stay[one.RequestURI] || one.ResponseStatus.Code == http.StatusForbidden
			if _, there := theirs[id]; !there && !mayStay {
				missing++
			}
		}
		return len(ours) == asked && missing == 0
	})
	for id, one := range theirs {
		other, there := ours[id]
		switch {
		case one.User.Username != "system:serviceaccount:"+agentNamespace+":"+proxyAccount:
		case !there:
			t.Errorf("want %s in the proxy's log too", event(one))
		case one.ImpersonatedUser == nil || one.ImpersonatedUser.Username != actedAs(other) || one.Verb != other.Verb ||
			one.RequestURI != other.RequestURI || one.ResponseStatus.Code != other.ResponseStatus.Code:
			t.Errorf("the API server says\n%s, the proxy\n%s", event(one), event(other))
		}
	}
	for id, one := range ours {
		if _, there := theirs[id]; there && stay[one.RequestURI] {
			t.Errorf("want it refused here, before the API server hears of it: %s", event(one))
		}
	}
}

// end is what a client does after its request.
type end int

const (
	readsAll  end = iota // the whole response
	breaksOff            // half-closes the connection
	leaves               // when the response begins
)

func get(path string, header ...string) string {
	return "GET " + path + " HTTP/1.1\n" + strings.Join(append([]string{"Host: x"}, header...), "\n") + "\n\n"
}

// numbered adds a number to the query of a request, which identifies it in the logs.
func numbered(request string, n int) string {
	method, rest, _ := strings.Cut(request, " ")
	target, rest, _ := strings.Cut(rest, " ")
	separator := "?"
	if strings.Contains(target, "?") {
		separator = "&"
	}
	return fmt.Sprintf("%s %s%sn=%d %s", method, target, separator, n, rest)
}

// posted returns a POST with a short body.
func posted(path, header, body string) string {
	return "POST " + path + " HTTP/1.1\nHost: x\nContent-Type: application/json\n" + header + "\n\n" + body
}

func actedAs(one auditv1.Event) string {
	if one.ImpersonatedUser != nil {
		return one.ImpersonatedUser.Username
	}
	return one.User.Username
}

// eventsIn reads the audit log of an API server.
func eventsIn(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	content := must.Get(os.ReadFile(path))(t)
	var all []auditv1.Event
	for line := range strings.Lines(string(content)) {
		var one auditv1.Event
		if err := json.Unmarshal([]byte(line), &one); err == nil { // the last line may still be written
			all = append(all, one)
		}
	}
	return all
}
