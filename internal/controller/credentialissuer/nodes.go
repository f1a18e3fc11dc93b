package credentialissuer

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// controlPlaneSelectors select control-plane nodes. Managed clusters have none.
var controlPlaneSelectors = []string{
	"node-role.kubernetes.io/control-plane",
	"node-role.kubernetes.io/master",
	"kubernetes.io/node-role in (control-plane, master)",
}

// errNoNodes is returned for a cluster without nodes, where mode auto cannot decide.
var errNoNodes = errors.New("no nodes found")

// controlPlaneVisible reports whether the cluster has a control-plane node. Each request is limited to one node, so the
// cost does not grow with the cluster.
func controlPlaneVisible(ctx context.Context, reader client.Reader) (bool, error) {
	for _, selector := range controlPlaneSelectors {
		found, err := anyNode(ctx, reader, selector)
		if err != nil || found {
			return found, err
		}
	}
	found, err := anyNode(ctx, reader, "")
	if err == nil && !found {
		err = errNoNodes
	}
	return false, err
}

func anyNode(ctx context.Context, reader client.Reader, selector string) (bool, error) {
	nodes := metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	err := reader.List(ctx, &nodes, &client.ListOptions{
		Limit: 1,
		Raw:   &metav1.ListOptions{LabelSelector: selector},
	})
	if err != nil {
		return false, fmt.Errorf("error fetching nodes: %w", err)
	}
	return len(nodes.Items) > 0, nil
}
