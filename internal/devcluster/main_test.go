package devcluster

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDirEnv); dir != "" {
		os.Exit(runHelper(dir, os.Getenv(helperModeEnv)))
	}
	os.Exit(m.Run())
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

var errStillThere = errors.New("still there")
