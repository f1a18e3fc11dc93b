package authenticators

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// shelf is a fake Cache that records its content.
type shelf struct {
	mu      sync.Mutex
	names   []string
	puts    int
	problem string // of the last suspended authenticator

	expected string // the last one
}

func (s *shelf) Expect(kind, name, issuer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected = kind + "/" + name + " " + issuer
}

func (s *shelf) Put(kind, name string, _ authenticator.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	if !slices.Contains(s.names, kind+"/"+name) {
		s.names = append(s.names, kind+"/"+name)
	}
}

func (s *shelf) Suspend(kind, name, why string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = why
	return s.remove(kind, name)
}

func (s *shelf) Remove(kind, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(kind, name)
}

func (s *shelf) remove(kind, name string) bool {
	before := len(s.names)
	s.names = slices.DeleteFunc(s.names, func(n string) bool { return n == kind+"/"+name })
	return len(s.names) < before
}

func (s *shelf) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.names, "WebhookAuthenticator/"+name)
}

// drawer is a fake Getter.
type drawer[T client.Object] struct {
	objects map[string]T
	err     error
	kept    []string // objects that were kept
}

func (d *drawer[T]) Get(_ context.Context, name types.NamespacedName) (T, bool, error) {
	object, found := d.objects[name.String()]
	return object, found, d.err
}

func (d *drawer[T]) Forget(keep func(types.NamespacedName) bool) {
	d.kept = nil
	for _, name := range []string{"a", "b"} {
		if keep(types.NamespacedName{Namespace: "ns", Name: name}) {
			d.kept = append(d.kept, name)
		}
	}
}

// found is the Known of the test's kind. It counts calls of Release.
type found struct {
	authenticator.Token
	released *int
}

func (f *found) InUse() authenticator.Token { return f }

func (f *found) Release(Known) { *f.released++ }

// testKind is WebhookAuthenticators with an evaluation for tests: usable if the CA bundle is.
func (f *fixture) testKind() Kind {
	return Kind{
		Name:    "WebhookAuthenticator",
		New:     func() client.Object { return &authenticationv1alpha1.WebhookAuthenticator{} },
		NewList: func() client.ObjectList { return &authenticationv1alpha1.WebhookAuthenticatorList{} },
		TLS: func(object client.Object) *authenticationv1alpha1.TLSSpec {
			return object.(*authenticationv1alpha1.WebhookAuthenticator).Spec.TLS
		},
		Status: func(object client.Object) Status {
			return Status(object.(*authenticationv1alpha1.WebhookAuthenticator).Status)
		},
		Issuer: func(object client.Object) string {
			return object.(*authenticationv1alpha1.WebhookAuthenticator).Spec.Endpoint
		},
		Evaluate: func(_ context.Context, _ client.Object, bundle CABundle, before Known) Evaluation {
			f.evaluations++
			f.expectedThen = f.cache.expected
			finding := Evaluation{
				Conditions: []metav1.Condition{bundle.Condition, Good(TypeAuthenticator, MessageAuthenticator)},
			}
			switch {
			case !bundle.Usable():
				finding.Conditions[1] = Unknown(TypeAuthenticator)
			case before != nil:
				finding.Known = before
			default:
				finding.Known = &found{released: &f.released}
			}
			return finding
		},
	}
}

// fixture is a reconciler with fakes that the test controls.
type fixture struct {
	*Reconciler
	cache       *shelf
	configMaps  *drawer[*corev1.ConfigMap]
	leading     bool
	fail        error // of writes
	writes      int
	evaluations int
	released    int

	expectedThen string // what the cache expected when the evaluation began
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{cache: &shelf{}, configMaps: &drawer[*corev1.ConfigMap]{}, leading: true}
	scheme := runtime.NewScheme()
	apis.AddToScheme(scheme, "example.com")
	bundle := newBundle(t)
	f.configMaps.objects = map[string]*corev1.ConfigMap{
		"ns/a": {Data: map[string]string{"k": string(bundle)}},
		"ns/b": {Data: map[string]string{"k": string(bundle)}},
	}
	object := func(name string) *authenticationv1alpha1.WebhookAuthenticator {
		source := fromSource("ConfigMap")
		source.CertificateAuthorityDataSource.Name = name
		return &authenticationv1alpha1.WebhookAuthenticator{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1, UID: types.UID(name)},
			Spec: authenticationv1alpha1.WebhookAuthenticatorSpec{
				Endpoint: "https://" + name + ".example.com",
				TLS:      source,
			},
		}
	}
	fakeClient := fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&authenticationv1alpha1.WebhookAuthenticator{}).
		WithObjects(object("a"), object("b")).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceApply: func(ctx context.Context, c client.Client, sub string, object runtime.ApplyConfiguration, options ...client.SubResourceApplyOption) error {
				if f.fail != nil {
					return f.fail
				}
				f.writes++
				return c.SubResource(sub).Apply(ctx, object, options...)
			},
		}).Build()
	f.Reconciler = &Reconciler{
		Kind: f.testKind(), Client: fakeClient, Secrets: &drawer[*corev1.Secret]{}, ConfigMaps: f.configMaps, Cache: f.cache,
		IsLeader: func() bool { return f.leading }, Namespace: "ns", Clock: clocktesting.NewFakeClock(testNow),
	}
	return f
}

func (f *fixture) run(t *testing.T, name string) error {
	t.Helper()
	_, err := f.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
	return err
}

func (f *fixture) object(t *testing.T, name string) *authenticationv1alpha1.WebhookAuthenticator {
	t.Helper()
	object := &authenticationv1alpha1.WebhookAuthenticator{}
	must.Do(t, f.Client.Get(t.Context(), types.NamespacedName{Name: name}, object))
	return object
}

func (f *fixture) phase(t *testing.T, name string) string {
	t.Helper()
	return string(f.object(t, name).Status.Phase)
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	t.Run("puts a good one into use and reports once", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		for range 3 {
			must.Do(t, f.run(t, "a"))
		}
		got := []any{f.cache.has("a"), f.cache.puts, f.writes, f.phase(t, "a"), f.released}
		if diff := cmp.Diff([]any{true, 1, 1, "Ready", 0}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("does the same on a follower, but for the report", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.leading = false
		must.Do(t, f.run(t, "a"))
		if !f.cache.has("a") || f.writes != 0 {
			t.Errorf("in use: %v, writes: %d", f.cache.has("a"), f.writes)
		}
		f.leading = true // and it reports when it becomes the leader
		if err := f.run(t, "a"); err != nil || f.phase(t, "a") != "Ready" || f.cache.puts != 1 {
			t.Errorf("phase %q, puts %d, error %v", f.phase(t, "a"), f.cache.puts, err)
		}
	})
	t.Run("uses a good one although the report fails", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.fail = errors.New("the API server is away")
		if err := f.run(t, "a"); !errors.Is(err, f.fail) || !strings.Contains(err.Error(), `WebhookAuthenticator "a"`) {
			t.Errorf("got %v", err)
		}
		if !f.cache.has("a") {
			t.Error("it is not in use")
		}
	})
	t.Run("takes one out of use that becomes invalid, and one that is deleted", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		for _, name := range []string{"a", "b"} {
			must.Do(t, f.run(t, name))
		}
		if diff := cmp.Diff([]string{"a", "b"}, f.configMaps.kept); diff != "" {
			t.Errorf("followed (-want +got):\n%s", diff)
		}
		f.configMaps.objects["ns/a"] = &corev1.ConfigMap{Data: map[string]string{"k": "broken"}}
		must.Do(t, f.run(t, "a"))
		if f.cache.has("a") || !f.cache.has("b") || f.phase(t, "a") != "Error" {
			t.Errorf("in use: %v, phase %q", f.cache.names, f.phase(t, "a"))
		}
		if f.released != 1 || !strings.Contains(f.cache.problem, "spec.tls.certificateAuthorityDataSource is invalid") {
			t.Errorf("released %d, problem %q", f.released, f.cache.problem)
		}
		must.Do(t, f.Client.Delete(t.Context(), f.object(t, "b")))
		must.Do(t, f.run(t, "b"))
		if len(f.cache.names) != 0 || f.recall("b") != nil || f.released != 2 {
			t.Errorf("in use: %v, released %d", f.cache.names, f.released)
		}
		if diff := cmp.Diff([]string{"a"}, f.configMaps.kept); diff != "" {
			t.Errorf("followed (-want +got):\n%s", diff)
		}
	})
	t.Run("keeps one in use while its CA bundle cannot be read", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		must.Do(t, f.run(t, "a"))
		f.configMaps.err = errors.New("the API server is away")
		if err := f.run(t, "a"); !errors.Is(err, f.configMaps.err) {
			t.Errorf("got %v", err)
		}
		if !f.cache.has("a") || f.phase(t, "a") != "Ready" {
			t.Errorf("in use: %v, phase %q", f.cache.names, f.phase(t, "a"))
		}
	})
	t.Run("believes no probe that was broken off", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := f.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}})
		if !errors.Is(err, context.Canceled) || f.writes != 0 || f.cache.puts != 0 || f.evaluations != 1 {
			t.Errorf("writes %d, puts %d, error %v", f.writes, f.cache.puts, err)
		}
	})
	t.Run("says whose tokens are its own before it is evaluated", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		if err := f.run(t, "a"); err != nil || f.expectedThen != "WebhookAuthenticator/a https://a.example.com" {
			t.Errorf("got %q, %v", f.expectedThen, err)
		}
	})
	t.Run("finds all of them when woken", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		if got := f.all(t.Context(), nil); len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" {
			t.Errorf("got %v", got)
		}
	})
}

// slowFixture has an evaluation that blocks until the test provides the result.
func slowFixture(t *testing.T) (f *fixture, finish chan Evaluation) {
	t.Helper()
	f = newFixture(t)
	finish = make(chan Evaluation)
	f.Kind.Evaluate = func(ctx context.Context, _ client.Object, _ CABundle, _ Known) Evaluation {
		select {
		case found := <-finish:
			return found
		case <-ctx.Done():
			return Evaluation{}
		}
	}
	f.Kind.Checking = func(_ client.Object, bundle CABundle) []metav1.Condition {
		return []metav1.Condition{bundle.Condition, Checking(TypeAuthenticator)}
	}
	return f, finish
}

func (f *fixture) waitForPhase(t *testing.T, name string, want authenticationv1alpha1.AuthenticatorPhase) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := f.object(t, name).Status; got.Phase != want {
			return fmt.Errorf("phase %q: %v", got.Phase, got.Conditions)
		}
		return nil
	})
}

func TestStatusWhileBeingChecked(t *testing.T) {
	t.Parallel()
	good := Evaluation{Conditions: []metav1.Condition{Good(TypeAuthenticator, MessageAuthenticator)}}
	start := func(t *testing.T, f *fixture) (ended chan error) {
		t.Helper()
		ended = make(chan error, 1)
		go func() { ended <- f.run(t, "a") }()
		return ended
	}
	t.Run("says of a new one that it is being checked", func(t *testing.T) {
		t.Parallel()
		f, finish := slowFixture(t)
		ended := start(t, f)
		f.waitForPhase(t, "a", authenticationv1alpha1.PhasePending)
		reasons := map[string]string{}
		for _, condition := range f.object(t, "a").Status.Conditions {
			reasons[condition.Type] = string(condition.Status) + " " + condition.Reason
		}
		want := map[string]string{
			TypeTLS: "True Success", TypeAuthenticator: "Unknown BeingChecked", TypeReady: "Unknown BeingChecked",
		}
		if diff := cmp.Diff(want, reasons); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		finish <- good
		if err := <-ended; err != nil || f.phase(t, "a") != "Ready" {
			t.Errorf("phase %q, error %v", f.phase(t, "a"), err)
		}
	})
	t.Run("fixes what somebody else wrote while it is checked again", func(t *testing.T) {
		t.Parallel()
		f, finish := slowFixture(t)
		ended := start(t, f)
		finish <- good
		must.Do(t, <-ended)
		before := f.object(t, "a").Status
		ended = start(t, f)
		object := f.object(t, "a")
		object.Status.Phase = authenticationv1alpha1.PhaseError
		must.Do(t, f.Client.Status().Update(t.Context(), object))
		f.waitForPhase(t, "a", authenticationv1alpha1.PhaseReady)
		if diff := cmp.Diff(before, f.object(t, "a").Status); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
		finish <- good
		must.Do(t, <-ended)
	})
	t.Run("leaves what an earlier leader found", func(t *testing.T) {
		t.Parallel()
		f, finish := slowFixture(t)
		object := f.object(t, "a")
		object.Status.Phase = authenticationv1alpha1.PhaseReady
		ready := Good(TypeReady, "ready")
		ready.ObservedGeneration, ready.LastTransitionTime = 1, metav1.NewTime(testNow)
		object.Status.Conditions = []metav1.Condition{ready}
		must.Do(t, f.Client.Status().Update(t.Context(), object))
		must.Do(t, f.reportMeanwhile(t.Context(), object, CABundle{Condition: Good(TypeTLS, "")}))
		if f.writes != 0 {
			t.Errorf("it wrote %d times", f.writes)
		}
		close(finish)
	})
	t.Run("goes on checking when the report fails", func(t *testing.T) {
		t.Parallel()
		f, finish := slowFixture(t)
		f.fail = errors.New("the API server is away")
		ended := start(t, f)
		time.Sleep(2 * patience)
		finish <- good
		if err := <-ended; !errors.Is(err, f.fail) {
			t.Errorf("got %v", err)
		}
	})
}

func TestLoaded(t *testing.T) {
	t.Parallel()
	loaded := func(f *fixture) string {
		if err := f.Loaded(t.Context()); err != nil {
			return err.Error()
		}
		return ""
	}
	t.Run("when each has been evaluated, good or not", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		delete(f.configMaps.objects, "ns/b")
		for _, name := range []string{"a", "b"} {
			if got, want := loaded(f), `WebhookAuthenticator "`+name+`" has not been checked yet`; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			must.Do(t, f.run(t, name))
		}
		if got := loaded(f); got != "" || f.phase(t, "b") != "Error" {
			t.Errorf("got %q, and the phase of the second %s", got, f.phase(t, "b"))
		}
	})
	t.Run("in any case, when one has not been evaluated for long", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		clock := clocktesting.NewFakeClock(testNow)
		f.Clock = clock
		if got := loaded(f); got == "" {
			t.Error("it does not wait")
		}
		clock.Step(loadPatience - time.Nanosecond)
		if got := loaded(f); got == "" {
			t.Error("it gives up early")
		}
		clock.Step(time.Nanosecond)
		if got := loaded(f); got != "" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("for ever after", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		for _, name := range []string{"a", "b"} {
			must.Do(t, f.run(t, name))
		}
		if got := loaded(f); got != "" {
			t.Errorf("got %q", got)
		}
		f.verdicts = nil
		if got := loaded(f); got != "" {
			t.Errorf("got %q", got)
		}
	})
}
