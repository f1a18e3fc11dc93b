package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// webhookArgs returns the flags for an authorizer before RBAC. It denies what deny returns, and has no opinion about
// the rest.
func webhookArgs(t *testing.T, deny func(*authorizationv1.ResourceAttributes) bool) []string {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if about := review.Spec.ResourceAttributes; about != nil && deny(about) {
			review.Status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "denied by name"}
		}
		writeJSON(w, http.StatusCreated, review)
	}))
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL, InsecureSkipTLSVerify: true}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*config, path))
	return []string{
		"--authorization-mode=Webhook,RBAC", "--authorization-webhook-version=v1",
		"--authorization-webhook-config-file=" + path,
	}
}

// reviewed returns the number of access reviews that the proxy sent.
func (r *realProxy) reviewed() int64 {
	counts := &r.access.Counts
	return counts.Yes.Load() + counts.No.Load() + counts.Failed.Load()
}

// grant allows a user the verbs in the namespace default, until the returned function is called.
func (r *realProxy) grant(t *testing.T, who string, verbs []string, names ...string) func() {
	t.Helper()
	rule := rbacv1.PolicyRule{
		APIGroups:     []string{""},
		Resources:     []string{"configmaps"},
		Verbs:         verbs,
		ResourceNames: names,
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: who}, Rules: []rbacv1.PolicyRule{rule}}
	must.Get(r.admin.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}))(t)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: who},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: who},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: who}},
	}
	bindings := r.admin.RbacV1().RoleBindings("default")
	must.Get(bindings.Create(t.Context(), binding, metav1.CreateOptions{}))(t)
	name := ""
	if len(names) > 0 {
		name = names[0]
	}
	about := &authorizationv1.ResourceAttributes{Namespace: "default", Verb: verbs[0], Resource: "configmaps", Name: name}
	r.waitPermitted(t, authorizationv1.SubjectAccessReviewSpec{User: who, ResourceAttributes: about})
	return func() { must.Do(t, bindings.Delete(t.Context(), who, metav1.DeleteOptions{})) }
}

// TestRealWiderQuestions uses a real API server whose first authorizer denies some names that RBAC allows. The objects
// need not exist: authorization comes first.
func TestRealWiderQuestions(t *testing.T) {
	t.Parallel()
	args := webhookArgs(t, func(about *authorizationv1.ResourceAttributes) bool {
		return strings.HasPrefix(about.Name, "denied")
	})
	clock := newStillClock()
	r := startReal(t, devcluster.Options{ExtraAPIServerArgs: args}, func(r *realProxy) {
		r.options = func(o *Options) { o.Clock = clock }
	})
	as := func(name string) func(method, object string) response {
		client := r.client(t, clientCertificate(t, r.signerCA, name))
		return func(method, object string) response {
			t.Helper()
			return r.do(t, client, method, "/api/v1/namespaces/default/configmaps/"+object, nil, "")
		}
	}
	ours := func(got response) bool { return strings.Contains(got.Body, identity.DecisionMadeBy) }

	t.Run("a thousand names cost one review, and end with the permission", func(t *testing.T) {
		revoke := r.grant(t, "jane", []string{"get"})
		jane, before := as("jane"), r.reviewed()
		for i := range 1000 {
			if got := jane("GET", fmt.Sprint(i)); got.Code != 404 {
				t.Fatalf("want 404, got %d: %s", got.Code, got.Body)
			}
		}
		if got := r.reviewed() - before; got != 1 {
			t.Errorf("want one review, got %d", got)
		}
		revoke()
		// Until the proxy's cache expires, only the API server refuses.
		eventually(t, func() bool { return jane("GET", "0").Code == 403 })
		if got := jane("GET", "1000"); got.Code != 403 || ours(got) {
			t.Errorf("want the API server's refusal, got %d: %s", got.Code, got.Body)
		}
		clock.Step(10*time.Second + 1)
		for _, object := range []string{"0", "1000", "1001"} {
			if got := jane("GET", object); got.Code != 403 || !ours(got) {
				t.Errorf("want the proxy's refusal, got %d: %s", got.Code, got.Body)
			}
		}
	})

	t.Run("rights to single names are just these", func(t *testing.T) {
		r.grant(t, "joe", []string{"get"}, "one", "two", "three", "six")
		joe := as("joe")
		for range 3 {
			for object, want := range map[string]int{
				"one": 404, "two": 404, "three": 404, "six": 404, "four": 403, "five": 403, "": 403, "denied": 403,
			} {
				if got := joe("GET", object); got.Code != want || want == 403 && !ours(got) {
					t.Errorf("%q: want %d, got %d: %s", object, want, got.Code, got.Body)
				}
			}
		}
	})

	t.Run("the API server refuses a name that its authorizer denies", func(t *testing.T) {
		r.grant(t, "eve", []string{"get", "delete"})
		eve := as("eve")
		for _, method := range []string{"GET", "DELETE"} {
			for i := range 4 {
				if got := eve(method, fmt.Sprint(i)); got.Code != 404 {
					t.Fatalf("want 404, got %d: %s", got.Code, got.Body)
				}
			}
			before := r.reviewed()
			got := eve(method, "denied")
			if got.Code != 403 || ours(got) || !strings.Contains(got.Body, `User \"eve\"`) ||
				!strings.Contains(got.Body, "denied by name") {
				t.Errorf("want the API server's refusal of eve, got %d: %s", got.Code, got.Body)
			}
			if got := r.reviewed() - before; got != 0 {
				t.Errorf("want no review, got %d", got)
			}
		}
	})
}
