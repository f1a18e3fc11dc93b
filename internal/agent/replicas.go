package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/replicas"
)

// addReplicas sets up the registry of replicas, and the recorder of events, which ends with ctx. Events about the
// CredentialIssuer, which has no namespace, go to the namespace default. changed is called when a replica publishes a
// change.
func (a *agent) addReplicas(ctx context.Context, changed func(types.NamespacedName)) {
	a.replicas = replicas.New(replicas.Options{
		Leases:   a.kube.CoordinationV1().Leases(a.options.Namespace),
		Group:    a.config.AppName,
		Name:     a.options.PodName,
		Labels:   a.config.Labels,
		IsLeader: a.leader.Leading,
		Changed: func() {
			a.retestSigner()
			changed(types.NamespacedName{})
		},
		Clock: clock.RealClock{},
	})
	sink := &corev1client.EventSinkImpl{Interface: a.kube.CoreV1().Events("")}
	a.events = newRecorder(ctx, a.scheme, sink, a.options.PodName)
}

// signerChanged publishes the state of the cluster's own signer to the other replicas and to the controllers.
func (a *agent) signerChanged() {
	problem := ""
	if err := a.clusterSigner.State().Err; err != nil {
		problem = err.Error()
	}
	a.replicas.PublishSigner(problem)
	a.triggers.fireAll()
}

// retestSigner tests the cluster's own signer again when another replica has reported a change: a login that failed
// there would fail here, too, and the leader reports it in the status.
func (a *agent) retestSigner() {
	if a.clusterSigner == nil {
		return
	}
	said := a.replicas.Signers()
	if before := a.signersReport.Swap(&said); before != nil && *before != said || before == nil && said != "" {
		a.clusterSigner.Retest()
	}
}

// newRecorder returns a recorder of events, which ends with ctx. There is an event for each transition, not for each
// reconciliation, so its limits are higher than client-go's: 25 per object and then one in five minutes. A dozen
// transitions would exceed that, and events would be dropped.
func newRecorder(ctx context.Context, scheme *runtime.Scheme, sink record.EventSink, host string) record.EventRecorder {
	limits := record.CorrelatorOptions{
		BurstSize: 300, QPS: 0.1, // per object
		MaxEvents: 100, // per reason, in ten minutes, before events are aggregated
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(limits))
	broadcaster.StartRecordingToSink(sink)
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: "pinniped-agent", Host: host})
}
