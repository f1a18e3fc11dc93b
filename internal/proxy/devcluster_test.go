package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

const (
	agentNamespace = "pinniped-concierge"
	agentAccount   = "pinniped-concierge"
	proxyAccount   = "pinniped-concierge-impersonation-proxy"
)

// realProxy is a proxy in front of a real kube-apiserver, with the permissions that it has in production.
type realProxy struct {
	*proxy
	cluster *devcluster.Cluster
	admin   kubernetes.Interface // directly at the API server
	options func(*Options)       // changes the proxy's options, if not nil
}

func startReal(t *testing.T, options devcluster.Options, changes ...func(*realProxy)) *realProxy {
	t.Helper()
	cluster := testkit.Cluster(t, options)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r := &realProxy{cluster: cluster, admin: kubernetes.NewForConfigOrDie(cluster.AdminConfig())}
	r.install(t)
	agent := must.Get(cluster.ServiceAccountConfig(ctx, agentNamespace, agentAccount))(t)
	source := must.Get(relay.NewServiceAccountToken(agent, agentNamespace, proxyAccount))(t)
	r.proxy = &proxy{
		servingCA: newCA(t, "serving CA"),
		signerCA:  newCA(t, "signer CA"),
		clusterCA: cluster.ClientCA(),
		ended:     make(chan error, 1),
	}
	r.signer.Store(r.signerCA.CertPEM())
	r.renewServing(t)
	for _, change := range changes {
		change(r)
	}
	r.run(t, agent, source)
	return r
}

// install grants the agent exactly the permissions in deploy/.
func (r *realProxy) install(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	core, none := r.admin.CoreV1(), metav1.CreateOptions{}
	must.Get(core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: named(agentNamespace)}, none))(t)
	for _, name := range []string{agentAccount, proxyAccount} {
		must.Get(core.ServiceAccounts(agentNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: named(name)}, none))(t)
	}
	must.Get(r.admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: named(proxyAccount),
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"users", "groups", "serviceaccounts"}, Verbs: []string{"impersonate"}},
			{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"impersonate"}},
		},
	}, none))(t)
	must.Get(r.admin.RbacV1().Roles(agentNamespace).Create(ctx, &rbacv1.Role{
		ObjectMeta: named(agentAccount),
		Rules: []rbacv1.PolicyRule{{
			APIGroups:     []string{""},
			Resources:     []string{"serviceaccounts/token"},
			ResourceNames: []string{proxyAccount},
			Verbs:         []string{"create"},
		}},
	}, none))(t)
	for account, role := range map[string]string{proxyAccount: proxyAccount, agentAccount: "system:auth-delegator"} {
		subject := rbacv1.Subject{Kind: "ServiceAccount", Namespace: agentNamespace, Name: account}
		must.Do(t, r.bind(ctx, role+"-"+account, role, subject))
	}
	for namespace, role := range map[string]string{
		"kube-system": "extension-apiserver-authentication-reader", agentNamespace: agentAccount,
	} {
		must.Get(r.admin.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: named(agentAccount),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: agentNamespace, Name: agentAccount}},
		}, none))(t)
	}
}

// bind binds subject to a ClusterRole.
func (r *realProxy) bind(ctx context.Context, name, role string, subject rbacv1.Subject) error {
	_, err := r.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(name, ":", "-")},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{subject},
	}, metav1.CreateOptions{})
	return err
}

// waitPermitted waits until the API server applies a permission.
func (r *realProxy) waitPermitted(t *testing.T, spec authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	eventually(t, func() bool {
		review, err := r.admin.AuthorizationV1().SubjectAccessReviews().
			Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed
	})
}

func (r *realProxy) run(t *testing.T, agent *rest.Config, source *relay.ServiceAccountToken) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	listener := listenHere(t)
	// The API server may need a moment to apply the bindings.
	eventually(t, func() bool {
		options := r.proxy.options(listener, agent, agent, source)
		options.ProbeInterval = time.Second
		if r.options != nil {
			r.options(&options)
		}
		var err error
		r.Server, err = New(ctx, options)
		return err == nil
	})
	go source.Run(ctx)
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		r.stop()
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})
	eventually(t, func() bool { return r.Ready() == nil })
	for account, needs := range map[string]authorizationv1.ResourceAttributes{
		proxyAccount: {Verb: "impersonate", Resource: "users"},
		agentAccount: {Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	} {
		name := "system:serviceaccount:" + agentNamespace + ":" + account
		r.waitPermitted(t, authorizationv1.SubjectAccessReviewSpec{User: name, ResourceAttributes: &needs})
	}
}

// through returns config with the address of the proxy.
func (r *realProxy) through(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = "https://" + r.address
	config.CAData = r.servingCA.CertPEM()
	return config
}

func whoAmI(t *testing.T, config *rest.Config) authenticationv1.UserInfo {
	t.Helper()
	review := must.Get(kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))(t)
	return review.Status.UserInfo
}

const metadataPolicy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: " +
	"Metadata\n"

func TestRealAPIServer(t *testing.T) {
	t.Parallel()
	r := startReal(t, devcluster.Options{AuditPolicy: []byte(metadataPolicy)})
	admin := r.through(r.cluster.AdminConfig())
	adminClient := kubernetes.NewForConfigOrDie(admin)
	jane := must.Get(r.cluster.User("jane", "dev"))(t)
	account := must.Get(r.cluster.ServiceAccountConfig(t.Context(), agentNamespace, agentAccount))(t)
	nested := r.cluster.AdminConfig()
	nested.Impersonate = rest.ImpersonationConfig{
		UserName: "joe",
		UID:      "u-1",
		Groups:   []string{"a", "b"},
		Extra:    map[string][]string{"example.com/k_k": {"1", "é"}},
	}

	t.Run("users are who they are without the proxy", func(t *testing.T) {
		for name, config := range map[string]*rest.Config{
			"admin": r.cluster.AdminConfig(), "user": jane, "service account": account,
		} {
			if diff := cmp.Diff(whoAmI(t, config), whoAmI(t, r.through(config))); diff != "" {
				t.Errorf("%s (-direct +proxied):\n%s", name, diff)
			}
		}
		if got := whoAmI(t, r.through(account)); got.UID == "" || len(got.Extra) == 0 {
			t.Errorf("want a service account with UID and extras, got %+v", got)
		}
	})

	t.Run("nested users too, and the original user is known", func(t *testing.T) {
		direct, proxied := whoAmI(t, nested), whoAmI(t, r.through(nested))
		original := proxied.Extra[relay.OriginalUserExtraKey]
		delete(proxied.Extra, relay.OriginalUserExtraKey)
		if diff := cmp.Diff(direct, proxied); diff != "" {
			t.Errorf("(-direct +proxied):\n%s", diff)
		}
		var info authenticationv1.UserInfo
		if len(original) != 1 || json.Unmarshal([]byte(original[0]), &info) != nil {
			t.Fatalf("want the original user as JSON, got %q", original)
		}
		same.Values(t, "original user", whoAmI(t, r.cluster.AdminConfig()), info)
	})

	t.Run("extra keys with capitals arrive as they are", func(t *testing.T) {
		header := http.Header{
			"Content-Type": {"application/json"}, "Impersonate-User": {"joe"}, "Impersonate-Extra-Access%4bey%49d": {"AKIA"},
		}
		got := r.do(t, r.as(t, "root", "system:masters"), "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews",
			header, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
		var review authenticationv1.SelfSubjectReview
		must.Do(t, json.Unmarshal([]byte(got.Body), &review))
		if got := review.Status.UserInfo.Extra["accessKeyId"]; len(got) != 1 || got[0] != "AKIA" {
			t.Errorf("want extra accessKeyId, got %+v", review)
		}
	})

	t.Run("the audit log shows all three", func(t *testing.T) {
		eventually(t, func() bool {
			log := must.Get(os.ReadFile(r.cluster.AuditLog()))(t)
			for line := range bytes.Lines(log) {
				var event struct {
					User             authenticationv1.UserInfo  `json:"user"`
					ImpersonatedUser *authenticationv1.UserInfo `json:"impersonatedUser"`
				}
				if json.Unmarshal(line, &event) != nil || event.ImpersonatedUser == nil || event.ImpersonatedUser.UID != "u-1" {
					continue
				}
				original := strings.Join(event.ImpersonatedUser.Extra[relay.OriginalUserExtraKey], "")
				if event.User.Username == "system:serviceaccount:"+agentNamespace+":"+proxyAccount &&
					event.ImpersonatedUser.Username == "joe" &&
					strings.Contains(original, whoAmI(t, r.cluster.AdminConfig()).Username) {
					return true
				}
			}
			return false
		})
	})

	t.Run("a denial is the proxy's, and a grant works at once", func(t *testing.T) {
		config := r.through(&rest.Config{QPS: -1})
		pair, err := r.signerCA.IssueClient(certs.ClientIdentity{Username: "pinny", Groups: []string{"dev"}}, time.Now(),
			time.Hour)
		must.Do(t, err)
		config.CertData, config.KeyData = pair.CertPEM, pair.KeyPEM
		pinny := kubernetes.NewForConfigOrDie(config)
		_, err = pinny.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{})
		const want = `pods is forbidden: User "pinny" cannot list resource "pods" in API group "" in the namespace "kube-system": decision made by impersonation-proxy.concierge.pinniped.dev`
		if !apierrors.IsForbidden(err) || err.Error() != want {
			t.Fatalf("want %q, got %v", want, err)
		}
		bound := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "pinny"}
		must.Do(t, r.bind(t.Context(), "pinny", "cluster-admin", bound))
		list := &authorizationv1.ResourceAttributes{Namespace: "kube-system", Verb: "list", Resource: "pods"}
		r.waitPermitted(t, authorizationv1.SubjectAccessReviewSpec{User: "pinny", ResourceAttributes: list})
		granted := time.Now()
		eventually(t, func() bool {
			_, err := pinny.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{})
			return err == nil
		})
		if took := time.Since(granted); took > time.Second {
			t.Errorf("want it to work within a second, took %s", took)
		}
	})

	t.Run("anonymous users as the API server has them", func(t *testing.T) {
		config := r.through(&rest.Config{})
		if got, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion(); err != nil || got.Major != "1" {
			t.Errorf("want the version, got %v, %v", got, err)
		}
		_, err := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "system:anonymous" cannot list`) {
			t.Errorf("want the anonymous user forbidden, got %v", err)
		}
		config.BearerToken = "no good"
		if _, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
			t.Errorf("want a bad token refused, got %v", err)
		}
	})

	t.Run("discovery, objects and watches", func(t *testing.T) {
		if groups, resources, err := adminClient.Discovery().ServerGroupsAndResources(); err != nil || len(groups) < 10 ||
			len(resources) < 10 {
			t.Errorf("want all APIs, got %d groups, %v", len(groups), err)
		}
		maps := adminClient.CoreV1().ConfigMaps("default")
		watch := must.Get(maps.Watch(t.Context(), metav1.ListOptions{}))(t)
		defer watch.Stop()
		added := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}
		must.Get(maps.Create(t.Context(), added, metav1.CreateOptions{}))(t)
		for timeout := time.After(10 * time.Second); ; {
			select {
			case event, ok := <-watch.ResultChan():
				if !ok {
					t.Fatal("the watch ended")
				}
				if object, ok := event.Object.(*corev1.ConfigMap); ok && object.Name == "new" {
					return
				}
			case <-timeout:
				t.Fatal("no event")
			}
		}
	})

	// Kubernetes' own tests send http://localhost.
	for _, origin := range []string{"https://" + r.address, "http://localhost"} {
		t.Run("a watch over websocket from "+origin, func(t *testing.T) {
			reader := bufio.NewReader(r.raw(t, clientCertificate(t, r.signerCA, "root", "system:masters"),
				"GET /api/v1/namespaces/default/configmaps?watch=1 HTTP/1.1\nHost: "+r.address+"\nConnection: Upgrade\n"+
					"Upgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n"+
					"Origin: "+origin+"\n\n"))
			if got := readResponse(t, reader); got.Code != 101 || got.Header.Get("Sec-Websocket-Accept") == "" {
				t.Fatalf("want 101, got %d: %s", got.Code, got.Body)
			}
			event, err := reader.ReadString('\n')
			if err != nil || !strings.Contains(event, `"ADDED"`) {
				t.Errorf("want an event, got %q, %v", event, err)
			}
		})
	}

	t.Run("the upstream credential can only impersonate", func(t *testing.T) {
		bindings := r.admin.RbacV1().ClusterRoleBindings()
		must.Do(t, bindings.Delete(t.Context(), proxyAccount+"-"+proxyAccount, metav1.DeleteOptions{}))
		want := `User "system:serviceaccount:` + agentNamespace + ":" + proxyAccount + `" cannot impersonate`
		eventually(t, func() bool {
			_, err := adminClient.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), want)
		})
	})
}

func TestRealAPIServerGoesAndComesBack(t *testing.T) {
	t.Parallel()
	r := startReal(t, devcluster.Options{DisableAnonymous: true})
	config := r.through(r.cluster.AdminConfig())
	list := func() error {
		_, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return err
	}
	must.Do(t, list())
	// Anonymous users are not admitted, except to TokenCredentialRequests. Those get 404 here, because the agent's
	// aggregated APIs are not installed.
	if got := r.get(t, r.client(t, nil), "/version", nil); got.Code != 401 || got.Body != unauthorizedBody {
		t.Errorf("want 401, got %d: %s", got.Code, got.Body)
	}
	nobody := rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:unauthenticated"}
	must.Do(t, r.bind(t.Context(), "login", "cluster-admin", nobody))
	eventually(t, func() bool { return r.get(t, r.client(t, nil), loginPath, nil).Code == http.StatusNotFound })

	var events atomic.Int32
	go func() {
		watch, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			return
		}
		for range watch.ResultChan() {
			events.Add(1)
		}
		events.Store(-1) // ended
	}()
	eventually(t, func() bool { return events.Load() > 0 })
	must.Do(t, r.cluster.StopAPIServer())
	eventually(t, func() bool { return events.Load() == -1 })
	client := r.as(t, "root", "system:masters")
	checkUnavailable(t, r.get(t, client, "/api/v1/namespaces", nil), true)
	must.Do(t, r.cluster.RestartAPIServer(t.Context()))
	if err := list(); err != nil {
		t.Errorf("want the proxy to recover by itself, got %v", err)
	}
}

// TestRealAnonymousPolicyIsFollowed changes what an API server admits without credentials while the proxy runs. The API
// server only reads that at its start.
func TestRealAnonymousPolicyIsFollowed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "authentication.yaml")
	configure := func(anonymous string) {
		t.Helper()
		content := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: " + anonymous + "\n"
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	}
	const initial = "{enabled: true, conditions: [{path: /healthz}]}"
	configure(initial)
	r := startReal(t, devcluster.Options{ExtraAPIServerArgs: []string{"--authentication-config=" + path}})
	paths := [...]string{"/healthz", "/livez", "/version"}
	codes := func(server string, roots []byte) (got [len(paths)]int) {
		t.Helper()
		client := must.Get(rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: roots}}))(t)
		defer client.CloseIdleConnections()
		for i, path := range paths {
			if res, err := client.Get(server + path); err == nil {
				got[i] = res.StatusCode
				_ = res.Body.Close()
			}
		}
		return got
	}
	for _, test := range []struct {
		anonymous string
		want      [len(paths)]int
	}{
		{initial, [...]int{200, 401, 401}},
		{"{enabled: true}", [...]int{200, 200, 200}},
		{"{enabled: false}", [...]int{401, 401, 401}},
	} {
		if test.anonymous != initial {
			configure(test.anonymous)
			must.Do(t, r.cluster.RestartAPIServer(t.Context()))
		}
		if direct := codes(r.cluster.URL(), r.cluster.CABundle()); direct != test.want {
			t.Errorf("with %s the API server itself returns %v, want %v", test.anonymous, direct, test.want)
		}
		eventually(t, func() bool { return codes("https://"+r.address, r.servingCA.CertPEM()) == test.want })
	}
}
