package devcluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFailingStart(t *testing.T) {
	t.Parallel()
	needPrograms(t)

	for _, test := range []struct {
		name    string
		options Options
		want    []string
	}{
		{
			name:    "shows an unknown flag of the API server",
			options: Options{ExtraAPIServerArgs: []string{"--no-such-flag=1"}},
			want: []string{"starting kube-apiserver: it ended before it was ready: exit status 1", "unknown flag: " +
				"--no-such-flag"},
		},
		{
			name:    "shows a refused value of a flag",
			options: Options{ExtraAPIServerArgs: []string{"--service-cluster-ip-range=nonsense"}},
			want: []string{
				"starting kube-apiserver: it ended before it was ready: exit status 1",
				"service-cluster-ip-range[0] is not a valid cidr",
			},
		},
		{
			name:    "shows what was waited for when the time is up",
			options: Options{StartTimeout: time.Nanosecond},
			want:    []string{"starting etcd: waiting until it is ready: context deadline exceeded"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "cluster")
			test.options.Dir = dir
			cluster, err := Start(t.Context(), test.options)
			if err == nil {
				_ = cluster.Stop()
				t.Fatal("want an error")
			}
			for _, want := range append(test.want, "the end of its log", dir) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in the error, got:\n%v", want, err)
				}
			}
		})
	}

	t.Run("leaves the logs, and nothing else, in a temporary directory", func(t *testing.T) {
		t.Parallel()
		options, temporary, err := Options{ExtraAPIServerArgs: []string{"--no-such-flag=1"}}.complete()
		if err != nil || !temporary {
			t.Fatalf("want a temporary directory, got %t, %v", temporary, err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(options.Dir) })
		paths := map[string]string{}
		for _, name := range []string{etcdProgram, apiServerProgram} {
			if paths[name], err = systemFinder().program(name); err != nil {
				t.Fatal(err)
			}
		}
		cluster := &Cluster{options: options, dir: options.Dir, temporary: true}
		if err := cluster.bringUp(t.Context(), paths, time.Now()); err == nil {
			t.Error("want an error")
		}
		if err := cluster.giveUp(); err != nil {
			t.Error(err)
		}
		left, err := filepath.Glob(filepath.Join(options.Dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{filepath.Join(options.Dir, "logs")}, left); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})

	t.Run("stops waiting when the context is cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Start(ctx, Options{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
			t.Errorf("want %q, got %v", context.Canceled, err)
		}
	})
}
