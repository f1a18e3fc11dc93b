package satoken

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// later is a clock that is ahead.
type later struct {
	clock.PassiveClock
	by time.Duration
}

func (l later) Now() time.Time { return time.Now().Add(l.by) }

// real is a real cluster with the overlay in deploy/.
type real struct {
	*devcluster.Cluster
	admin    kubernetes.Interface
	manager  *rest.Config
	accounts *Accounts
}

// testAtOnce has two replicas serve many concurrent logins of one user, each with other groups.
func (r *real) testAtOnce(t *testing.T, constrained bool) {
	t.Helper()
	replicas := []*Accounts{r.accounts, r.replica(t)}
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			user := Identity{Username: "busy", Groups: []string{fmt.Sprintf("group-%d", i%4)}}
			credential, err := replicas[i%2].Issue(t.Context(), user, constrained)
			if err != nil {
				t.Errorf("login %d: %v", i, err)
				return
			}
			got, err := whoAmI(t.Context(), r.as(t, credential.Token, credential.Headers))
			if err != nil || !slices.Contains(got.Groups, user.Groups[0]) {
				t.Errorf("login %d: %+v, %v", i, got, err)
			}
		})
	}
	group.Wait()
}

func (r *real) testTampering(t *testing.T, constrained bool) {
	t.Helper()
	user := Identity{Username: "cleo", Groups: []string{"dev"}}
	must.Get(r.accounts.Issue(t.Context(), user, constrained))(t)
	id, _ := user.normal()
	name := id.name(accountsNamespace)
	bindings, roles := r.admin.RbacV1().ClusterRoleBindings(), r.admin.RbacV1().ClusterRoles()
	bound, err := bindings.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bound.Subjects = append(bound.Subjects, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "mallory"})
	must.Get(bindings.Update(t.Context(), bound, metav1.UpdateOptions{}))(t)
	permits := must.Get(roles.Get(t.Context(), name, metav1.GetOptions{}))(t)
	permits.Rules = append(permits.Rules, legacyRules(Identity{Username: "boss"})...)
	must.Get(roles.Update(t.Context(), permits, metav1.UpdateOptions{}))(t)
	credential := must.Get(r.accounts.Issue(t.Context(), user, constrained))(t)
	boss := map[string][]string{"Impersonate-User": {"boss"}}
	if _, err := whoAmI(t.Context(), r.as(t, credential.Token, boss)); !apierrors.IsForbidden(err) {
		t.Errorf("what was added to the role is still there: %v", err)
	}
	if bound, err = bindings.Get(t.Context(), name, metav1.GetOptions{}); err != nil || len(bound.Subjects) != 1 {
		t.Errorf("what was added to the binding is still there: %+v, %v", bound, err)
	}
	// the role of a binding is immutable, so the binding must be recreated
	must.Do(t, bindings.Delete(t.Context(), name, metav1.DeleteOptions{}))
	bound.ObjectMeta = metav1.ObjectMeta{Name: name}
	bound.RoleRef.Name = "view"
	must.Get(bindings.Create(t.Context(), bound, metav1.CreateOptions{}))(t)
	if _, err := r.accounts.Issue(t.Context(), user, constrained); err == nil {
		t.Error("a binding that is not ours is taken over")
	}
	must.Do(t, bindings.Delete(t.Context(), name, metav1.DeleteOptions{}))
	if _, err := r.accounts.Issue(t.Context(), user, constrained); err != nil {
		t.Error(err)
	}
	// an account whose annotations name another user
	accounts := r.admin.CoreV1().ServiceAccounts(accountsNamespace)
	must.Get(accounts.Patch(t.Context(), name, "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"concierge.pinniped.dev/username":"boss"}}}`), metav1.PatchOptions{}))(t)
	if _, err := r.accounts.Issue(t.Context(), user, constrained); err == nil ||
		!strings.Contains(err.Error(), "another user's") {
		t.Errorf("got %v", err)
	}
}

func (r *real) testCollector(t *testing.T, constrained bool) {
	t.Helper()
	user := Identity{Username: "dora", Groups: []string{"dev"}}
	credential, err := r.accounts.Issue(t.Context(), user, constrained)
	if err != nil {
		t.Fatal(err)
	}
	id, _ := user.normal()
	name := id.name(accountsNamespace)
	all := []string{"account " + name, "role " + name, "binding " + name}
	collect := func(by time.Duration, every bool) map[string]string {
		t.Helper()
		collector := r.replica(t)
		collector.Clock = later{by: by}
		must.Do(t, collector.Collect(t.Context(), every))
		return r.versions(t)
	}
	has := func(versions map[string]string) int {
		return len(slices.DeleteFunc(slices.Clone(all), func(key string) bool { return versions[key] == "" }))
	}
	if left := has(collect(TokenLife, false)); left != 3 {
		t.Errorf("%d of 3 objects are left while a token may live", left)
	}
	if _, err := whoAmI(t.Context(), r.as(t, credential.Token, credential.Headers)); err != nil {
		t.Error(err)
	}
	if left := has(collect(TokenLife+hold+2*skew, false)); left != 0 {
		t.Errorf("%d of 3 objects are left after the last token has expired", left)
	}
	// A login has used the account since the collector read it: it stays.
	must.Get(r.accounts.Issue(t.Context(), user, constrained))(t)
	observed := must.Get(
		r.admin.CoreV1().ServiceAccounts(accountsNamespace).Get(t.Context(), name, metav1.GetOptions{}))(t)
	ahead := r.replica(t)
	ahead.Clock = later{by: hold} // a login an hour later, which writes
	must.Get(ahead.Issue(t.Context(), user, constrained))(t)
	err = r.accounts.Manager.CoreV1().ServiceAccounts(accountsNamespace).Delete(t.Context(), name, unchanged(observed))
	if !apierrors.IsConflict(err) {
		t.Errorf("want a conflict, got %v", err)
	}
	// Role and binding of a recreated account: the collector does not delete what it read before.
	roles, bindings, err := r.accounts.grants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, r.admin.CoreV1().ServiceAccounts(accountsNamespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	must.Get(r.accounts.Issue(t.Context(), user, constrained))(t)
	rbac := r.accounts.Manager.RbacV1()
	if err := rbac.ClusterRoles().Delete(t.Context(), name, unchanged(roles[name])); !apierrors.IsConflict(err) {
		t.Errorf("role: want a conflict, got %v", err)
	}
	if err := rbac.ClusterRoleBindings().Delete(t.Context(), name, unchanged(bindings[name])); !apierrors.IsConflict(err) {
		t.Errorf("binding: want a conflict, got %v", err)
	}
	// The strategy is turned off: nothing is left, and tokens stop working once the API server's cache of them expires.
	credential = must.Get(r.accounts.Issue(t.Context(), user, constrained))(t)
	if left := collect(0, true); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	testkit.Eventually(t, 15*time.Second, func() error {
		if _, err := whoAmI(t.Context(), r.as(t, credential.Token, credential.Headers)); err == nil {
			return errors.New("a token of a deleted account works")
		}
		return nil
	})
}

func (r *real) testFlood(t *testing.T, constrained bool) {
	t.Helper()
	few := r.replica(t)
	few.Max = 4
	issued := 0
	for i := range 6 {
		_, err := few.Issue(t.Context(), Identity{Username: fmt.Sprintf("flood-%d", i)}, constrained)
		if err == nil {
			issued++
		} else if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	if issued != few.Max {
		t.Errorf("%d users got in, the limit is %d", issued, few.Max)
	}
	if _, err := few.Issue(t.Context(), Identity{Username: "flood-0"}, constrained); err != nil {
		t.Errorf("a user with an account does not get in any more: %v", err)
	}
	few.Clock = later{by: TokenLife + hold + 2*skew}
	if _, err := few.Issue(t.Context(), Identity{Username: "late"}, constrained); err != nil {
		t.Errorf("no login succeeds after the accounts of the flood have expired: %v", err)
	}
}
