package devcluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"
)

// testTimeout limits one call that starts programs. It is generous, because the machine may be busy.
const testTimeout = 4 * time.Minute

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDirEnv); dir != "" {
		os.Exit(runHelper(dir, os.Getenv(helperModeEnv)))
	}
	os.Exit(m.Run())
}

// startCluster starts a cluster that ends with the test. It skips under -short, and fails if the programs are missing.
func startCluster(t *testing.T, options Options) *Cluster {
	t.Helper()
	needPrograms(t)
	log := &lockedBuffer{}
	options.Log = log
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cluster, err := Start(ctx, options)
	if err != nil {
		t.Fatalf("Start: %v\nlog:\n%s", err, log)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return cluster
}

func needPrograms(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	for _, name := range []string{etcdProgram, apiServerProgram} {
		if _, err := systemFinder().program(name); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually polls until check returns nil, and fails the test after timeout.
func eventually(t *testing.T, timeout time.Duration, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still not after %s: %v", timeout, err)
		case <-time.After(pollInterval):
		}
	}
}

// lockedBuffer is a buffer that is safe for concurrent use.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

var errStillThere = errors.New("still there")
