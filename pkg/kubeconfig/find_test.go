package kubeconfig_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

func TestFind(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "fleet")
	for _, path := range []string{
		"a.yaml", "a.yaml.lock", ".a.yaml.1234.tmp", ".tmp", ".hidden.yaml", "more/b.yaml", "more/notes.tmp", ".git/config", "..data/c.yaml",
	} {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, "x")
	}
	for name, to := range map[string]string{"c.yaml": "..data/c.yaml", "dangling": "nowhere", "loop": ".", "../linked": "fleet"} {
		if err := os.Symlink(to, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	in := func(names ...string) []kubeconfig.Found {
		var files []kubeconfig.Found
		for _, name := range names {
			files = append(files, kubeconfig.Found{Path: filepath.Join(folder, name), Link: name == "c.yaml"})
		}
		return files
	}
	named := func(path string) kubeconfig.Found { return kubeconfig.Found{Path: path, Named: true} }
	below := in(".hidden.yaml", ".tmp", "a.yaml", "c.yaml", "more/b.yaml", "more/notes.tmp")
	missing, link, file := filepath.Join(folder, "missing"), filepath.Join(folder, "c.yaml"), filepath.Join(folder, "more", "b.yaml")
	for _, test := range []struct {
		name  string
		paths []string
		want  []kubeconfig.Found
	}{
		{"goes through a folder", []string{folder}, below},
		{"takes a folder with a slash behind it for the same", []string{folder + "/", folder}, below},
		{"has a file that is named and found once", []string{file, filepath.Join(folder, "more")}, append([]kubeconfig.Found{named(file)}, in("more/notes.tmp")...)},
		{"goes into a hidden folder that is named", []string{filepath.Join(folder, ".git")}, in(".git/config")},
		{"keeps what is not there for the caller to find out", []string{missing}, []kubeconfig.Found{named(missing)}},
		{"takes a link that is named for a file", []string{link}, []kubeconfig.Found{named(link)}},
		{"finds nothing without paths", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := kubeconfig.Find(t.Context(), test.paths)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	t.Run("follows a link to a folder that is named", func(t *testing.T) {
		t.Parallel()
		got, err := kubeconfig.Find(t.Context(), []string{filepath.Join(folder, "..", "linked")})
		if err != nil || len(got) != len(below) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("ends with its context", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := kubeconfig.Find(ctx, []string{folder}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}
