//go:build unix

package kubeconfig_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// TestFilesThatAKubeconfigNames: a kubeconfig names files that would block its reader or fill its memory.
func TestFilesThatAKubeconfigNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "some.fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, named := range []string{"some.fifo", "/dev/zero"} {
		path := filepath.Join(dir, "config")
		text := "kind: Config\nclusters:\n- {name: c, cluster: {server: 'https://c.example.com', certificate-authority: " + named +
			"}}\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
		write(t, path, text)
		config, err := kubeconfig.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, trust := range kubeconfig.AllTrusts(config) {
			if !errors.Is(trust.Err, atomicfile.ErrNotRegular) {
				t.Errorf("%s: %v", named, trust.Err)
			}
		}
		source, err := kubeconfig.Select(config, "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.CABundle(); !errors.Is(err, atomicfile.ErrNotRegular) {
			t.Errorf("%s: %v", named, err)
		}
		to := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: "https://c.example.com"}, CABundle: ca(t, "c")}
		if _, err := kubeconfig.RotateFile(t.Context(), path, to, false); err != nil {
			t.Errorf("%s: %v", named, err)
		}
	}
}

// TestRotateFileThatIsExchanged: an attacker who owns the directory replaces the kubeconfig by a link after it was
// read. The target of the link stays unchanged.
func TestRotateFileThatIsExchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, theirs := filepath.Join(dir, "config"), filepath.Join(dir, "theirs")
	for _, made := range []string{path, theirs} {
		write(t, made, bigFile)
	}
	calls := 0
	_, err := kubeconfig.UpdateFile(context.Background(), path, kubeconfig.FileUpdate{
		Change: func(content []byte) (*kubeconfig.Rotation, error) {
			if calls++; calls == 2 { // the file is locked and about to be written
				if err := errors.Join(os.Remove(path), os.Symlink(theirs, path)); err != nil {
					return nil, err
				}
			}
			return kubeconfig.Rotate(content, kubeconfig.Target{
				Endpoint: kubeconfig.Endpoint{URL: "https://east.example.com"}, CABundle: ca(t, "east"),
			})
		},
	})
	if !errors.Is(err, atomicfile.ErrReplaced) {
		t.Errorf("got %v", err)
	}
	if content, err := os.ReadFile(theirs); err != nil || string(content) != bigFile {
		t.Errorf("the file that the link leads to was changed: %v", err)
	}
}
