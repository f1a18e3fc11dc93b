package credentialissuer

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// noNodes is a client without permission to list nodes.
type noNodes struct{ client.Reader }

var errForbidden = errors.New("nodes is forbidden")

func (noNodes) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errForbidden
}

// TestTurnedOff shows that only mode auto lists nodes.
func TestTurnedOff(t *testing.T) {
	t.Parallel()
	r := &Reconciler{Live: noNodes{}, Clock: clock.RealClock{}}
	for mode, want := range map[configv1alpha1.ImpersonationProxyMode]struct {
		off *configv1alpha1.StrategyFinding
		err error
	}{
		configv1alpha1.ImpersonationProxyModeDisabled: {
			off: &configv1alpha1.StrategyFinding{
				Code: configv1alpha1.CodeDisabledBySpec, Severity: "Info", Message: messageDisabled,
			},
		},
		configv1alpha1.ImpersonationProxyModeEnabled: {},
		configv1alpha1.ImpersonationProxyModeAuto:    {err: errForbidden},
	} {
		off, unreadable, err := r.turnedOff(t.Context(), mode, &configv1alpha1.CredentialIssuer{})
		if !cmp.Equal(off, want.off) || unreadable != nil || !errors.Is(err, want.err) {
			t.Errorf("mode %s: got %v, %v and %v, want %v and %v", mode, off, unreadable, err, want.off, want.err)
		}
	}
}

// TestNodesThatCannotBeListed shows that the proxy stays as it was: on this replica, or, at startup, by the status.
func TestNodesThatCannotBeListed(t *testing.T) {
	t.Parallel()
	listening := proxyStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonListening, messageListening)
	listening.Frontend = frontend(serving.Endpoint{Host: "a.example.com", Port: "443"}, nil)
	off := proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonDisabled, messageAutoOff)
	failed := proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup, "error fetching nodes")
	for _, test := range []struct {
		name   string
		phase  int32
		status []configv1alpha1.CredentialIssuerStrategy
		on     bool
		known  bool
	}{
		{name: "stays on", phase: phaseOn, known: true, on: true},
		{name: "stays off", phase: phaseOff, known: true},
		{name: "starts as the others run", status: []configv1alpha1.CredentialIssuerStrategy{listening}, known: true, on: true},
		{name: "starts off as the others are", status: []configv1alpha1.CredentialIssuerStrategy{off}, known: true},
		{name: "fails while nobody knows", status: []configv1alpha1.CredentialIssuerStrategy{failed}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &Reconciler{Live: noNodes{}, Clock: clock.RealClock{}}
			r.phase.Store(test.phase)
			issuer := &configv1alpha1.CredentialIssuer{}
			issuer.Status.Strategies = test.status
			off, unreadable, err := r.turnedOff(t.Context(), configv1alpha1.ImpersonationProxyModeAuto, issuer)
			if known := err == nil; known != test.known || known && (off == nil) != test.on {
				t.Errorf("got %v, %v", off, err)
			}
			if test.known && (unreadable == nil || unreadable.Code != configv1alpha1.CodeNodesUnreadable ||
				unreadable.Severity != configv1alpha1.FindingWarning) {
				t.Errorf("the status does not tell it: %+v", unreadable)
			}
		})
	}
}

// TestReplicasWithoutNodes runs a proxy in mode auto and then revokes the permission to list nodes: the leader keeps
// serving, a new replica becomes ready, and the status keeps the address.
func TestReplicasWithoutNodes(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := startReplica(t, cluster, "default", true)
	must.Do(t, first.live.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}))
	first.create(t, spec{Mode: "auto", ExternalEndpoint: "a.example.com", Service: svc{Type: "None"}})
	first.waitFor(t, "Listening", messageListening)
	first.leading.Store(false)
	second := startReplicaWith(t, cluster, "default", "second", true, func(r *Reconciler) {
		r.Live = noNodes{r.Live}
	})
	strategy := second.waitForCodes(t, "Listening", "nodes is forbidden", configv1alpha1.CodeNodesUnreadable)
	if strategy.Frontend == nil || second.Ready() != nil {
		t.Errorf("ready: %v; the status is %+v", second.Ready(), strategy)
	}
}
