package satoken

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	accountsNamespace = "pinniped-concierge-users"
	managerNamespace  = "pinniped-concierge"
	managerName       = "pinniped-concierge-user-accounts"
)

func startReal(t *testing.T, args ...string) *real {
	t.Helper()
	cluster := testkit.Cluster(t, devcluster.Options{
		AuditPolicy: []byte(
			"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\nomitStages: [RequestReceived]\n",
		),
		ExtraAPIServerArgs: args,
	})
	admin := must.Get(kubernetes.NewForConfig(cluster.AdminConfig()))(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: managerNamespace}}
	must.Get(admin.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}))(t)
	must.Do(t, cluster.Install(t.Context(), "../../deploy/serviceaccounttokens"))
	manager := must.Get(cluster.ServiceAccountConfig(t.Context(), managerNamespace, managerName))(t)
	r := &real{Cluster: cluster, admin: admin, manager: manager}
	r.accounts = r.replica(t)
	testkit.Eventually(t, time.Minute, func() error { // the API server compiles the policy in the background
		_, err := r.accounts.Check(t.Context(), cluster.AdminConfig())
		return err
	})
	return r
}

// replica is the Accounts of another replica.
func (r *real) replica(t *testing.T) *Accounts {
	t.Helper()
	return r.withManager(t, r.manager)
}

// as returns a client with this token and these headers.
func (r *real) as(t *testing.T, token string, headers map[string][]string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(r.AdminConfig())
	config.BearerToken = token
	config.Wrap(withHeaders(headers))
	return must.Get(kubernetes.NewForConfig(config))(t)
}

func whoAmI(ctx context.Context, client kubernetes.Interface) (*authenticationv1.UserInfo, error) {
	review, err := client.AuthenticationV1().SelfSubjectReviews().
		Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return &review.Status.UserInfo, nil
}

// TestOnARealAPIServer tests the lifecycle of users' accounts, with and without constrained impersonation.
func TestOnARealAPIServer(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name        string
		args        []string
		constrained bool
	}{
		{name: "constrained impersonation", constrained: true},
		{name: "impersonation of older clusters", args: []string{"--feature-gates=ConstrainedImpersonation=false"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			r := startReal(t, kind.args...)
			constrained, err := r.accounts.Check(t.Context(), r.AdminConfig())
			if err != nil || constrained != kind.constrained {
				t.Fatalf("Check says constrained %v, %v", constrained, err)
			}
			t.Run("a token acts as the user", func(t *testing.T) { r.testActsAs(t, constrained) })
			t.Run("a token is good for nothing else", func(t *testing.T) { r.testStolen(t, constrained) })
			t.Run("a token has the groups of its own login", func(t *testing.T) { r.testGroups(t, constrained) })
			t.Run("sessions at a time", func(t *testing.T) { r.testSessions(t, constrained) })
			t.Run("many groups", func(t *testing.T) { r.testManyGroups(t, constrained) })
			t.Run("logins at once", func(t *testing.T) { r.testAtOnce(t, constrained) })
			t.Run("what was tampered with is put right", func(t *testing.T) { r.testTampering(t, constrained) })
			t.Run("the collector", func(t *testing.T) { r.testCollector(t, constrained) })
			t.Run("a flood of users", func(t *testing.T) { r.testFlood(t, constrained) })
			t.Run("the manager's limits", r.testGuard)
		})
	}
}

func (r *real) testActsAs(t *testing.T, constrained bool) {
	t.Helper()
	user := Identity{
		Username: "ann@example.com", UID: "ann-1", Groups: []string{"web", "dev", "web", "a/b c:d"},
		Extra: map[string][]string{"example.com/Team%": {"blue", "red"}},
	}
	credential := must.Get(r.accounts.Issue(t.Context(), user, constrained))(t)
	if left := time.Until(credential.Expiry); left > TokenLife || left < TokenLife-time.Minute {
		t.Errorf("the token lives for %s", left)
	}
	// the token works as soon as it is issued
	got := must.Get(whoAmI(t.Context(), r.as(t, credential.Token, credential.Headers)))(t)
	want := &authenticationv1.UserInfo{
		Username: "ann@example.com", UID: "ann-1", Groups: []string{"a/b c:d", "dev", "web", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"example.com/team%": {"blue", "red"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	id, _ := user.normal()
	account := "system:serviceaccount:" + accountsNamespace + ":" + id.name(accountsNamespace)
	if event := r.auditEvent(t, account); event.ImpersonatedUser.Username != user.Username {
		t.Errorf("the audit log has %+v", event)
	}
	// an identical login writes nothing
	before := r.versions(t)
	must.Get(r.accounts.Issue(t.Context(), user, constrained))(t)
	if diff := cmp.Diff(before, r.versions(t)); diff != "" {
		t.Errorf("the next login writes (-before +after):\n%s", diff)
	}
	// the same name with another UID is another user
	user.UID = "ann-2"
	second := must.Get(r.accounts.Issue(t.Context(), user, constrained))(t)
	if _, err := whoAmI(t.Context(), r.as(t, second.Token, credential.Headers)); !apierrors.IsForbidden(err) {
		t.Errorf("a user of the same name acts with the UID of another one: %v", err)
	}
}

type auditEvent struct {
	User             struct{ Username string }
	ImpersonatedUser struct{ Username string }
}

// auditEvent returns the audit event of an impersonated request by the account.
func (r *real) auditEvent(t *testing.T, account string) auditEvent {
	t.Helper()
	log := must.Get(os.ReadFile(r.AuditLog()))(t)
	for line := range bytes.Lines(log) {
		var event auditEvent
		if err := json.Unmarshal(line, &event); err == nil && event.User.Username == account &&
			event.ImpersonatedUser.Username != "" {
			return event
		}
	}
	t.Fatalf("the audit log has no impersonation by %s", account)
	return auditEvent{}
}

// versions returns the resource versions of all objects.
func (r *real) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	accounts, err := r.admin.CoreV1().ServiceAccounts(accountsNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range accounts.Items {
		versions["account "+item.Name] = item.ResourceVersion
	}
	roles, bindings, err := r.accounts.grants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, item := range roles {
		versions["role "+name] = item.GetResourceVersion()
	}
	for name, item := range bindings {
		versions["binding "+name] = item.GetResourceVersion()
	}
	return versions
}

// testGroups logs the same user in with other groups, and with another authenticator.
func (r *real) testGroups(t *testing.T, constrained bool) {
	t.Helper()
	issue := func(authenticator string, groups ...string) *Credential {
		t.Helper()
		credential := must.Get(r.accounts.Issue(t.Context(),
			Identity{Authenticator: authenticator, Username: "bea", Groups: groups}, constrained))(t)
		return credential
	}
	const people, partners = "JWTAuthenticator/people", "JWTAuthenticator/partners"
	first := issue(people, "dev")
	more := issue(people, "dev", "admins")
	less := issue(people)
	other := issue(partners, "dev", "guests")
	for name, test := range map[string]struct {
		token, headers *Credential
		want           []string // groups; nil means forbidden
	}{
		"as it logged in":                         {first, first, []string{"dev", "system:authenticated"}},
		"with more groups":                        {more, more, []string{"admins", "dev", "system:authenticated"}},
		"with the groups of a later login":        {first, more, nil},
		"with the groups of an earlier login":     {less, first, nil},
		"after a later login with fewer groups":   {more, first, []string{"dev", "system:authenticated"}},
		"by another authenticator":                {other, other, []string{"dev", "guests", "system:authenticated"}},
		"with the groups of another one's":        {first, other, nil},
		"of another one, with groups of this one": {other, more, nil},
	} {
		got, err := whoAmI(t.Context(), r.as(t, test.token.Token, test.headers.Headers))
		switch {
		case test.want == nil && !apierrors.IsForbidden(err):
			t.Errorf("%s: got %+v, %v", name, got, err)
		case test.want != nil && (err != nil || !slices.Equal(got.Groups, test.want)):
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// testSessions has two concurrent sessions of one user. Each token has another ID ("jti").
func (r *real) testSessions(t *testing.T, constrained bool) {
	t.Helper()
	login := func(id string) *Credential {
		t.Helper()
		credential := must.Get(r.accounts.Issue(t.Context(), Identity{
			Authenticator: "JWTAuthenticator/people", Username: "eve", Groups: []string{"dev"},
			Extra: map[string][]string{"example.com/team": {"blue"}, credentialIDExtra: {"JTI=" + id}},
		}, constrained))(t)
		return credential
	}
	laptop := login("1")
	before := r.versions(t)
	workstation := login("2")
	if diff := cmp.Diff(before, r.versions(t)); diff != "" {
		t.Errorf("the second session writes (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(laptop.Headers, workstation.Headers); diff != "" {
		t.Errorf("a kubeconfig with the headers of one is out of date for the other (-one +other):\n%s", diff)
	}
	for name, credential := range map[string]*Credential{"first": laptop, "second": workstation} {
		got, err := whoAmI(t.Context(), r.as(t, credential.Token, credential.Headers))
		if err != nil {
			t.Errorf("the %s session is broken: %v", name, err)
			continue
		}
		want := map[string]authenticationv1.ExtraValue{"example.com/team": {"blue"}}
		if diff := cmp.Diff(want, got.Extra); diff != "" {
			t.Errorf("extras of the %s session (-want +got):\n%s", name, diff)
		}
	}
}

func (r *real) testManyGroups(t *testing.T, constrained bool) {
	t.Helper()
	for _, count := range []int{1, 50, 1000} {
		user := Identity{Username: fmt.Sprintf("user-of-%d", count)}
		for i := range count {
			user.Groups = append(user.Groups, fmt.Sprintf("example.com/departments/department-%04d", i))
		}
		start := time.Now()
		credential, err := r.accounts.Issue(t.Context(), user, constrained)
		if err != nil {
			t.Fatalf("%d groups: %v", count, err)
		}
		took := time.Since(start)
		client := r.as(t, credential.Token, credential.Headers)
		start = time.Now()
		got, err := whoAmI(t.Context(), client)
		if err != nil || len(got.Groups) != count+1 {
			t.Fatalf("%d groups: got %+v, %v", count, got, err)
		}
		first := time.Since(start)
		start = time.Now()
		const requests = 20
		for range requests {
			must.Get(whoAmI(t.Context(), client))(t)
		}
		id, _ := user.normal()
		role := must.Get(r.admin.RbacV1().ClusterRoles().Get(t.Context(), id.name(accountsNamespace), metav1.GetOptions{}))(t)
		t.Logf("%4d groups: login %s, first request %s, then %s; the role has %d bytes, the headers have %d", count,
			took.Round(time.Millisecond), first.Round(time.Millisecond), (time.Since(start) / requests).Round(time.Microsecond),
			role.Size(), size(credential.Headers))
	}
}

func size(headers map[string][]string) int {
	total := 0
	for name, values := range headers {
		for _, value := range values {
			total += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return total
}
