package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestMemoryDoesNotGrowWithTheCluster fills the cluster with nodes, and the agent's namespace with Secrets that it does
// not use. Then it adds and removes a control-plane node: mode auto reacts.
func TestMemoryDoesNotGrowWithTheCluster(t *testing.T) {
	w := needsCluster(t)
	const nodes, secrets, secretSize = 500, 1000, 20 << 10
	w.generatedOnly(t)
	before := make([]int64, len(w.agents))
	for i, agent := range w.agents {
		before[i] = heap(t, agent)
	}
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	label := map[string]string{"filler": "x"}
	image := corev1.ContainerImage{Names: []string{"registry.example.com/" + strings.Repeat("x", 200)}, SizeBytes: 1}
	for i := range nodes {
		group.Go(func() error {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("filler-%d", i), Labels: label}}
			if err := w.admin.Create(ctx, node); err != nil {
				return err
			}
			for range 20 {
				node.Status.Images = append(node.Status.Images, image)
			}
			return w.admin.Status().Update(ctx, node)
		})
	}
	content := []byte(strings.Repeat("x", secretSize))
	for i := range secrets {
		group.Go(func() error {
			return w.admin.Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: devinstall.Namespace, Name: fmt.Sprintf("filler-%d", i), Labels: label},
				Data:       map[string][]byte{"x": content},
			})
		})
	}
	err := group.Wait()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(
			w.admin.DeleteAllOf(ctx, &corev1.Node{}, client.MatchingLabels(label)),
			w.admin.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(devinstall.Namespace), client.MatchingLabels(label)),
		); err != nil {
			t.Error(err)
		}
	})
	must.Do(t, err)

	// Only mode auto reads the nodes.
	auto := func(s *configv1alpha1.ImpersonationProxySpec) { s.Mode = configv1alpha1.ImpersonationProxyModeAuto }
	w.configure(t, auto)
	w.waitForStatus(t, "Listening", "ready to accept")
	plane := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "filler-plane",
			Labels: map[string]string{"filler": "x", "node-role.kubernetes.io/control-plane": ""},
		},
	}
	must.Do(t, w.admin.Create(t.Context(), plane))
	waitLonger := func(reason configv1alpha1.StrategyReason) {
		t.Helper()
		testkit.Eventually(t, 40*time.Second, func() error {
			if strategy := w.strategy(t); strategy.Reason != reason {
				return fmt.Errorf("the status is %s: %s", strategy.Reason, strategy.Message)
			}
			return nil
		})
	}
	waitLonger("Disabled")
	must.Do(t, w.admin.Delete(t.Context(), plane))
	waitLonger("Listening")

	const limit = 8 << 20 // all Secrets are 20 MB, all nodes 2 MB
	for i, agent := range w.agents {
		var after int64
		testkit.Eventually(t, 90*time.Second, func() error { // garbage is collected at least every two minutes
			after = heap(t, agent)
			if grown := after - before[i]; grown > limit {
				return fmt.Errorf("the heap has grown from %d to %d kB", before[i]>>10, after>>10)
			}
			return nil
		})
		t.Logf("replica %d: heap of %d kB before, %d kB with %d nodes and %d Secrets", i, before[i]>>10, after>>10, nodes,
			secrets)
	}
}

// heap returns the size of an agent's objects after a garbage collection, in bytes.
func heap(t *testing.T, agent *devinstall.Agent) int64 {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+agent.MetricsAddress()+"/debug/pprof/heap?gc=1", nil))(t)
	response, err := http.DefaultClient.Do(request)
	must.Do(t, err)
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("collecting garbage: %s (%v)", response.Status, err)
	}
	return int64(scrape(t, agent)["go_memstats_heap_alloc_bytes"])
}
