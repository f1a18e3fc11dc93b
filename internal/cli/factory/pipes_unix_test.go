//go:build unix

package factory_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// TestFilesOfAKubeconfig checks that kubeconfigs that name a pipe are rejected: files in kubeconfigs must be regular
// files.
func TestFilesOfAKubeconfig(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string]string{
		"CA bundle":   "clusters: [{name: a, cluster: {server: 'https://a.example.com', certificate-authority: fifo}}]",
		"certificate": "users: [{name: a, user: {client-certificate: fifo, client-key: fifo}}]",
		"token":       "users: [{name: a, user: {tokenFile: fifo}}]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
				t.Fatal(err)
			}
			path := write(
				t,
				filepath.Join(dir, "config"),
				"current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"+
					entries,
			)
			rest := write(t, filepath.Join(dir, "rest"), "users: [{name: a, user: {}}]\n"+
				"clusters: [{name: a, cluster: {server: 'https://a.example.com'}}]")
			empty := write(t, filepath.Join(dir, "empty"), "")
			f := newFactory(map[string]string{"KUBECONFIG": strings.Join([]string{empty, path, rest}, ":")}, "")
			if _, err := f.Cluster(factory.ClusterFlags{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("got %v", err)
			}
		})
	}
}
