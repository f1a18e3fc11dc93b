package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// TestRestartsInAnyOrder stops and starts etcd, the API server and a replica in several orders. After each, users can
// log in without manual repair, and both replicas serve a renewed certificate.
func TestRestartsInAnyOrder(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "restarts-cert", pairData(w.issue(t, "localhost")))
	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	do := func(step string, action func() error) {
		t.Helper()
		if err := action(); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
	replica := w.agents[1]
	ctx := t.Context()
	startEtcd := func() error { return w.Cluster.RestartEtcd(ctx) }
	startAPIServer := func() error { return w.Cluster.RestartAPIServer(ctx) }
	// A replica that starts without an API server waits for it, so its start only completes when the cluster is back.
	startReplica := func() (started chan error) {
		started = make(chan error, 1)
		go func() { started <- replica.Restart(context.WithoutCancel(ctx)) }()
		testkit.Eventually(t, 10*time.Second, func() error {
			if !replica.Running() {
				return errors.New("the replica does not run")
			}
			return nil
		})
		return started
	}
	t.Cleanup(func() { // the other tests need the cluster
		if t.Failed() {
			ctx := context.WithoutCancel(ctx)
			t.Log(errors.Join(w.Cluster.RestartEtcd(ctx), w.Cluster.RestartAPIServer(ctx), replica.Restart(ctx)))
		}
	})
	for _, test := range []struct {
		name string
		run  func()
	}{
		{"etcd alone", func() {
			do("stopping etcd", w.Cluster.StopEtcd)
			do("starting etcd", startEtcd)
		}},
		{"etcd first, then the API server", func() {
			do("stopping etcd", w.Cluster.StopEtcd)
			do("stopping the API server", w.Cluster.StopAPIServer)
			do("starting etcd", startEtcd)
			do("starting the API server", startAPIServer)
		}},
		{"a replica starts before the API server", func() {
			do("stopping a replica", replica.Stop)
			do("stopping the API server", w.Cluster.StopAPIServer)
			do("stopping etcd", w.Cluster.StopEtcd)
			started := startReplica()
			do("starting etcd", startEtcd)
			do("starting the API server", startAPIServer)
			if err := <-started; err != nil {
				t.Fatalf("starting a replica: %v", err)
			}
		}},
	} {
		test.run()
		testkit.Eventually(
			t,
			40*time.Second,
			func() error { return w.run(t, w.cli, "whoami", "--kubeconfig="+kubeconfig).err() },
		)
		renewed := w.issue(t, "localhost")
		w.putSecret(t, "restarts-cert", pairData(renewed))
		for i, agent := range w.agents {
			testkit.Eventually(t, 40*time.Second, func() error {
				if err := agent.Ready(t.Context()); err != nil {
					return fmt.Errorf("%s: replica %d: %w", test.name, i, err)
				}
				if err := presents(agent.ProxyAddress(), renewed); err != nil {
					return fmt.Errorf("%s: replica %d: %w", test.name, i, err)
				}
				return nil
			})
		}
	}
}
