package discovery

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var coordination = schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}

// ReplicaLabel is the label of the Leases that the agent's replicas renew as heartbeats.
const ReplicaLabel = "credentialissuer.pinniped.dev/replica-of"

// ReplicaLease is the heartbeat of one replica.
type ReplicaLease struct {
	// Renewed is when it was last renewed, and Lasts how long that is valid.
	Renewed time.Time
	Lasts   time.Duration
}

// Lives reports whether the Lease is valid at time now.
func (l ReplicaLease) Lives(now time.Time) bool { return now.Before(l.Renewed.Add(l.Lasts)) }

// ReplicaLeases returns the Leases of the agent's replicas in a namespace.
func (c *Client) ReplicaLeases(ctx context.Context, namespace string) ([]ReplicaLease, error) {
	op := operation{verb: "list", resource: coordination.WithResource("leases"), namespace: namespace}
	var list struct {
		Items []struct {
			Spec struct {
				LeaseDurationSeconds int
				RenewTime            metav1.MicroTime
			}
		}
	}
	request := c.request(op).Param("labelSelector", ReplicaLabel)
	if err := c.decode(ctx, op, request, "the Leases of the agent's replicas", &list); err != nil {
		return nil, err
	}
	leases := make([]ReplicaLease, 0, len(list.Items))
	for _, item := range list.Items {
		leases = append(leases, ReplicaLease{
			Renewed: item.Spec.RenewTime.Time, Lasts: time.Duration(item.Spec.LeaseDurationSeconds) * time.Second,
		})
	}
	return leases, nil
}
