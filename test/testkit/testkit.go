// Package testkit has helpers for tests of several packages: a control plane, polling, and a buffer for logs.
package testkit

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// startTimeout limits the start of a control plane. Other tests on the same machine may start theirs meanwhile.
const startTimeout = 4 * time.Minute

// Cluster starts a real etcd and kube-apiserver until the end of the test, and applies manifests (files or kustomize
// folders). It skips the test with -short, and if it needs a kube-controller-manager that is not built.
func Cluster(t *testing.T, options devcluster.Options, manifests ...string) *devcluster.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	var steps Buffer
	if options.Log == nil {
		options.Log = &steps
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	cluster, err := devcluster.Start(ctx, options)
	SkipWithoutControllerManager(t, err)
	if err != nil {
		t.Fatalf("starting a control plane: %v\n%s", err, steps.String())
	}
	Cleanup(t, cluster.Stop)
	if len(manifests) > 0 {
		must.Do(t, cluster.Install(ctx, manifests...))
	}
	return cluster
}

// SkipWithoutControllerManager skips the test if err says that there is no kube-controller-manager, for example in the
// folder KUBEBUILDER_ASSETS.
func SkipWithoutControllerManager(t *testing.T, err error) {
	t.Helper()
	var missing *devcluster.MissingProgramError
	if errors.As(err, &missing) && missing.Program == "kube-controller-manager" {
		t.Skip(err)
	}
}

// Cleanup calls f at the end of the test, which fails if f does.
func Cleanup(t *testing.T, f func() error) {
	t.Helper()
	t.Cleanup(func() {
		if err := f(); err != nil {
			t.Error(err)
		}
	})
}

// Eventually polls check until it returns nil. After the timeout, the test fails with the last error.
func Eventually(t *testing.T, timeout time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not come true within %s: %v", timeout, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Buffer collects output, for example logs. It is safe for concurrent use. The zero value is empty.
type Buffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

// String returns everything that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
