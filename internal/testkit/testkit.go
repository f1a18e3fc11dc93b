// Package testkit is what tests of several packages need: a control plane, waiting for a condition, a log to look into.
package testkit

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
)

// startTimeout is how long a control plane may take to come up, on a machine on which others do so, too.
const startTimeout = 4 * time.Minute

// Cluster starts a real etcd and kube-apiserver until the end of the test, with manifests (files or kustomize folders) on it.
// With -short the test is skipped.
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
	if err != nil {
		t.Fatalf("starting a control plane: %v\n%s", err, steps.String())
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	if len(manifests) > 0 {
		if err := cluster.Install(ctx, manifests...); err != nil {
			t.Fatal(err)
		}
	}
	return cluster
}

// slack is how many times longer than expected something may take before a test fails that waits for it, as several control planes
// share two processors.
const slack = 3

// Eventually waits until check returns no error, and expects that within a time. It says when it took longer, and fails the test with
// the last error after three times that. What the product promises is for Within.
func Eventually(t *testing.T, expected time.Duration, check func() error) {
	t.Helper()
	if took := wait(t, slack*expected, check); took > expected {
		t.Logf("it took %s, expected were %s", took.Round(time.Millisecond), expected)
	}
}

// Within waits until check returns no error, which is promised within a time. After that, the test fails with the last error.
func Within(t *testing.T, promised time.Duration, check func() error) {
	t.Helper()
	wait(t, promised, check)
}

func wait(t *testing.T, limit time.Duration, check func() error) (took time.Duration) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := check()
		took = time.Since(began)
		if err == nil {
			return took
		}
		if took > limit {
			t.Fatalf("it did not come true within %s: %v", limit, err)
		}
	}
}

// Buffer can be read while several goroutines write to it, as they do to a log. The zero value is empty.
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

// String returns all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
