package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/replicas"
)

// addReplicas makes the board on which the replicas see each other, and the recorder of events, which ends with ctx. Events about the
// CredentialIssuer, which has no namespace, go to namespace default. changed is called when a replica reports something new.
func (a *agent) addReplicas(ctx context.Context, changed func(types.NamespacedName)) error {
	leases, err := coordinationv1client.NewForConfig(a.rest)
	if err != nil {
		return fmt.Errorf("making a client for Leases: %w", err)
	}
	events, err := corev1client.NewForConfig(a.rest)
	if err != nil {
		return fmt.Errorf("making a client for events: %w", err)
	}
	a.replicas = replicas.New(replicas.Options{
		Leases:   leases.Leases(a.options.Namespace),
		Group:    a.config.Names.LeaderElectionLease,
		Name:     a.options.PodName,
		Labels:   a.config.Labels,
		IsLeader: a.leader.Leading,
		Changed:  func() { changed(types.NamespacedName{}) },
		Clock:    clock.RealClock{},
	})
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: events.Events("")})
	a.events = broadcaster.NewRecorder(a.scheme, corev1.EventSource{Component: "pinniped-agent", Host: a.options.PodName})
	return nil
}
