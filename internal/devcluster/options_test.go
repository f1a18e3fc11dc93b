package devcluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOptionsComplete(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	writeFile(t, filepath.Join(full, "data"), "x", 0o600)
	file := filepath.Join(t.TempDir(), "file")
	writeFile(t, file, "x", 0o600)

	for _, test := range []struct {
		name    string
		options Options
		wantErr string
	}{
		{name: "takes an empty directory", options: Options{Dir: t.TempDir()}},
		{name: "makes the directory", options: Options{Dir: filepath.Join(t.TempDir(), "a", "b")}},
		{name: "refuses a directory in use", options: Options{Dir: full}, wantErr: "is not empty: remove it, or name " +
			"another one"},
		{name: "refuses a file", options: Options{Dir: file}, wantErr: "reading the cluster's directory: "},
		{
			name: "refuses a flag without dashes", options: Options{ExtraAPIServerArgs: []string{"v=2"}},
			wantErr: `extra API server argument "v=2" is not of the form "--name=value"`,
		},
		{
			name: "refuses a flag without a name", options: Options{ExtraAPIServerArgs: []string{"--=2"}},
			wantErr: `extra API server argument "--=2" is not of the form`,
		},
		{name: "refuses a negative timeout", options: Options{StartTimeout: -time.Second}, wantErr: "start timeout -1s is " +
			"negative"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, temporary, err := test.options.complete()
			if test.wantErr != "" {
				if !strings.Contains(errorText(err), test.wantErr) {
					t.Errorf("want an error with %q, got %v", test.wantErr, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if temporary {
				t.Error("want the named directory, got a temporary one")
			}
			if info, err := os.Stat(got.Dir); err != nil || !info.IsDir() {
				t.Errorf("want a directory, got %v", err)
			}
			if got.StartTimeout != defaultStartTimeout || got.Log == nil {
				t.Errorf("want the defaults, got %v, %v", got.StartTimeout, got.Log)
			}
		})
	}
}

func TestMergeArgs(t *testing.T) {
	t.Parallel()
	got := mergeArgs(
		[]string{"--a=1", "--b=2", "--c"},
		[]string{"--b=3", "--b=4", "--c=false", "--ab=5"},
	)
	want := []string{"--a=1", "--b=3", "--b=4", "--c=false", "--ab=5"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgramEnv(t *testing.T) {
	t.Parallel()
	got := programEnv(
		[]string{"PATH=/bin", "ETCD_NAME=x", "KUBECONFIG=/x", "KUBE_CACHE_MUTATION_DETECTOR=true", "HOME=/root"},
	)
	if diff := cmp.Diff([]string{"PATH=/bin", "HOME=/root"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if got, want := tail(path, 0), "no such file"; !strings.Contains(got, want) {
		t.Errorf("want %q, got %q", want, got)
	}
	writeFile(t, path, "", 0o600)
	if diff := cmp.Diff("  (nothing)", tail(path, 0)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	writeFile(t, path, strings.Repeat("old line\n", 100)+"one\ntwo\n", 0o600)
	if diff := cmp.Diff("  one\n  two", tail(path, 900)); diff != "" {
		t.Errorf("of this run only (-want +got):\n%s", diff)
	}
	if got := strings.Count(tail(path, 0), "\n") + 1; got != tailLines {
		t.Errorf("want %d lines, got %d", tailLines, got)
	}
}
