package factory_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func TestExpandPath(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	f := newFactory(nil, home)
	for path, want := range map[string]string{
		"": "", "-": "-", "a/~/b": "a/~/b", "./~": "./~", "/abs": "/abs",
		"~": home, "~/.kube/config": filepath.Join(home, ".kube", "config"), "~//x": filepath.Join(home, "x"),
	} {
		if got, err := f.ExpandPath(path); err != nil || got != want {
			t.Errorf("%q: want %q, got %q, %v", path, want, got, err)
		}
	}
	for _, path := range []string{"~ann/x", "~x"} {
		if got, err := f.ExpandPath(path); err == nil {
			t.Errorf("%q: want an error, got %q", path, got)
		}
	}
	if got, err := newFactory(nil, "").ExpandPath("~/x"); err == nil {
		t.Errorf("without a home directory: want an error, got %q", got)
	}
}

func TestExpandPathFlags(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cmd := &cobra.Command{Use: "x"}
	one := cmd.Flags().String("merge-into", "", "")
	several := cmd.Flags().StringArray("kubeconfigs", nil, "")
	other := cmd.Flags().String("static-token", "", "")
	if err := cmd.ParseFlags(
		[]string{"--merge-into=~/a,b", "--kubeconfigs=~/c,d", "--kubeconfigs=e", "--static-token=~/t"},
	); err != nil {
		t.Fatal(err)
	}
	if err := newFactory(nil, home).ExpandPathsIn(cmd.Flags()); err != nil {
		t.Fatal(err)
	}
	got := append([]string{*one, *other}, *several...)
	want := []string{filepath.Join(home, "a,b"), "~/t", filepath.Join(home, "c,d"), "e"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := cmd.ParseFlags([]string{"--merge-into=~ann/a"}); err != nil {
		t.Fatal(err)
	}
	if err := newFactory(nil, home).ExpandPathsIn(cmd.Flags()); err == nil {
		t.Error("want an error for another user's home directory")
	}
}
