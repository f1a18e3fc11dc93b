package satoken

import (
	"context"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestAccountsAreDeletedOnlyIfTheStrategyIsOffNow turns the strategy off with a stale CredentialIssuer.
func TestAccountsAreDeletedOnlyIfTheStrategyIsOffNow(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]bool{"off": true, "on again": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := fake.NewClientset()
			b := NewBackend(BackendOptions{
				Manager: cluster, Reviewer: cluster, Namespace: "users",
				IsLeader: func() bool { return true },
				StillOff: func(context.Context) (bool, error) { return off, nil },
				Changed:  func() {},
			})
			b.Configure(Settings{Used: true})
			must.Do(t, b.sync(t.Context()))
			if collected := len(cluster.Actions()) > 0; collected != off || b.State().Cleaning == off {
				t.Errorf("collected: %v; the state is %+v", collected, b.State())
			}
		})
	}
}
