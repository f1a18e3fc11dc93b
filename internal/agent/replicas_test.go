package agent

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// sink accepts events as the API server does.
type sink chan string

func (s sink) Create(event *corev1.Event) (*corev1.Event, error) {
	s <- event.Message
	return event, nil
}

func (s sink) Update(event *corev1.Event) (*corev1.Event, error) { return event, nil }

func (s sink) Patch(event *corev1.Event, _ []byte) (*corev1.Event, error) { return event, nil }

// TestNoTransitionIsLost records the events of an hour in which a certificate is replaced and refused forty times.
func TestNoTransitionIsLost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	scheme := runtime.NewScheme()
	apis.AddToScheme(scheme, apis.DefaultGroupSuffix)
	const transitions = 40
	events := make(sink, 2*transitions)
	recorder := newRecorder(ctx, scheme, events, "pod")
	issuer := &configv1alpha1.CredentialIssuer{ObjectMeta: metav1.ObjectMeta{Name: "config", UID: "u-1"}}
	for i := range transitions {
		for _, event := range []struct{ kind, reason string }{
			{corev1.EventTypeNormal, "Serving"}, {corev1.EventTypeWarning, "KeyMismatch"},
		} {
			want := fmt.Sprintf("%s %d", event.reason, i)
			recorder.Event(issuer, event.kind, event.reason, want)
			if got := <-events; got != want {
				t.Fatalf("it says %q instead of %q", got, want)
			}
		}
	}
}
