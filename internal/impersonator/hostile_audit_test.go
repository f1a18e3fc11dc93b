package impersonator

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
)

// TestAuditLogsAgree has clients do what could make the proxy's audit log differ from that of a real API server, and
// compares the two, request by request.
func TestAuditLogsAgree(t *testing.T) {
	t.Parallel()
	file := &auditFile{}
	r := startReal(t, devcluster.Options{AuditPolicy: []byte(auditPolicy)}, func(r *realProxy) {
		r.audit = newAuditLog(t, file)
	})
	jane := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}
	if err := r.bind(t.Context(), "jane", "cluster-admin", jane); err != nil {
		t.Fatal(err)
	}
	r.waitPermitted(t, authorizationv1.SubjectAccessReviewSpec{
		User: "jane", ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "*", Resource: "*"},
	})
	const maps = "/api/v1/namespaces/default/configmaps"
	const object = `{"metadata":{"generateName":"a-"}}`
	asked := 0
	for name, ask := range map[string]struct {
		user, request string
		want          int
	}{
		"a list":                   {"jane", "GET " + maps + " HTTP/1.1\nHost: x\n\n", 200},
		"what is not there":        {"jane", "GET " + maps + "/none HTTP/1.1\nHost: x\n\n", 404},
		"what is not permitted":    {"mallory", "GET " + maps + " HTTP/1.1\nHost: x\n\n", 403},
		"a write that is not":      {"mallory", "DELETE " + maps + "/none HTTP/1.1\nHost: x\n\n", 403},
		"a watch":                  {"jane", "GET " + maps + "?watch=1&timeoutSeconds=1 HTTP/1.1\nHost: x\n\n", 200},
		"as another":               {"jane", "GET " + maps + " HTTP/1.1\nHost: x\nImpersonate-User: mallory\n\n", 403},
		"as another who may":       {"jane", "GET " + maps + " HTTP/1.1\nHost: x\nImpersonate-User: root\nImpersonate-Group: system:masters\n\n", 200},
		"an ID of the client's":    {"jane", "GET " + maps + "?own HTTP/1.1\nHost: x\nAudit-ID: of-the-client\n\n", 200},
		"a status of the client's": {"jane", posted(maps, "Expect: 100-continue\nContent-Length: 34", object), 201},
		"chunks":                   {"jane", posted(maps, "Transfer-Encoding: chunked", "22\n"+object+"\n0\n\n"), 201},
		"what is no object":        {"jane", posted(maps, "Content-Length: 34", strings.Repeat("x", 34)), 400},
	} {
		asked++
		answers := readerOf(r.raw(t, clientCertificate(t, r.signerCA, ask.user), ask.request))
		res, err := http.ReadResponse(answers, nil)
		if err == nil && res.StatusCode == http.StatusContinue {
			res, err = http.ReadResponse(answers, nil)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != ask.want {
			t.Errorf("%s: want %d, got %d", name, ask.want, res.StatusCode)
		}
	}
	completed := func(events []auditv1.Event) map[string]auditv1.Event {
		all := map[string]auditv1.Event{}
		for _, one := range events {
			if one.Stage == auditv1.StageResponseComplete && strings.HasPrefix(one.RequestURI, maps) {
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
			if _, there := theirs[id]; !there && one.ResponseStatus.Code < 400 {
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
		if _, there := theirs[id]; !there && one.ResponseStatus.Code != http.StatusForbidden {
			t.Errorf("want what was not refused here in the API server's log: %s", event(one))
		}
	}
}

// posted returns a POST with a body, of a small length.
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
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []auditv1.Event
	for line := range strings.Lines(string(content)) {
		var one auditv1.Event
		if err := json.Unmarshal([]byte(line), &one); err == nil { // the last line may still be written
			all = append(all, one)
		}
	}
	return all
}
