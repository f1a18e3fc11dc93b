package authenticators

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

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

func (f *fixture) status(t *testing.T, name string) authenticationv1alpha1.WebhookAuthenticatorStatus {
	t.Helper()
	var object authenticationv1alpha1.WebhookAuthenticator
	must.Do(t, f.Client.Get(t.Context(), types.NamespacedName{Name: name}, &object))
	return object.Status
}

func (f *fixture) waitForPhase(t *testing.T, name string, want authenticationv1alpha1.AuthenticatorPhase) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := f.status(t, name); got.Phase != want {
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
		for _, condition := range f.status(t, "a").Conditions {
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
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		before := f.status(t, "a")
		ended = start(t, f)
		object := &authenticationv1alpha1.WebhookAuthenticator{}
		must.Do(t, f.Client.Get(t.Context(), types.NamespacedName{Name: "a"}, object))
		object.Status.Phase = authenticationv1alpha1.PhaseError
		must.Do(t, f.Client.Status().Update(t.Context(), object))
		f.waitForPhase(t, "a", authenticationv1alpha1.PhaseReady)
		if diff := cmp.Diff(before, f.status(t, "a")); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
		finish <- good
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
	t.Run("leaves what an earlier leader found", func(t *testing.T) {
		t.Parallel()
		f, finish := slowFixture(t)
		object := &authenticationv1alpha1.WebhookAuthenticator{}
		must.Do(t, f.Client.Get(t.Context(), types.NamespacedName{Name: "a"}, object))
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
