package kubeconfig_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestFind(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "fleet")
	for _, path := range []string{
		"a.yaml", "a.yaml.lock", ".a.yaml.1234.tmp", ".tmp", ".hidden.yaml", "more/b.yaml", "more/notes.tmp", ".git/config", "..data/c.yaml",
		".kube/config", "../elsewhere/d.yaml",
	} {
		path = filepath.Join(folder, path)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		write(t, path, "x")
	}
	for name, to := range map[string]string{
		"c.yaml": "..data/c.yaml", "dangling": "nowhere", "loop": ".", "../linked": "fleet", "to-a": "a.yaml", "to-folder": "../elsewhere", ".#a.yaml": "ann@host",
	} {
		must.Do(t, os.Symlink(to, filepath.Join(folder, name)))
	}
	in := func(names ...string) []kubeconfig.Found {
		var files []kubeconfig.Found
		for _, name := range names {
			found := kubeconfig.Found{Path: filepath.Join(folder, name), Hidden: name == ".git"}
			if name == "dangling" {
				found.Err = kubeconfig.ErrDangling
			}
			files = append(files, found)
		}
		return files
	}
	named := func(path string) kubeconfig.Found { return kubeconfig.Found{Path: path, Named: true} }
	below := in(".git", ".hidden.yaml", ".kube/config", ".tmp", "a.yaml", "c.yaml", "dangling", "more/b.yaml",
		"more/notes.tmp", "to-folder/d.yaml")
	missing, link := filepath.Join(folder, "missing"), filepath.Join(folder, "c.yaml")
	file := filepath.Join(folder, "more", "b.yaml")
	for _, test := range []struct {
		name  string
		paths []string
		want  []kubeconfig.Found
	}{
		{"goes through a folder", []string{folder}, below},
		{"takes a folder with a slash behind it for the same", []string{folder + "/", folder}, below},
		{
			"has a file that is named and found once",
			[]string{file, filepath.Join(folder, "more")},
			append([]kubeconfig.Found{named(file)}, in("more/notes.tmp")...),
		},
		{"goes into a hidden folder that is named", []string{filepath.Join(folder, ".git")}, in(".git/config")},
		{
			"goes into it also behind the folder that it is in",
			[]string{folder, filepath.Join(folder, ".git")},
			append(slices.Clone(below), in(".git/config")...),
		},
		{"has a file and a link to it once", []string{filepath.Join(folder, "to-a"), folder}, append(
			[]kubeconfig.Found{named(filepath.Join(folder, "to-a"))},
			slices.DeleteFunc(
				slices.Clone(below), func(f kubeconfig.Found) bool { return filepath.Base(f.Path) == "a.yaml" },
			)...)},
		{"keeps what is not there for the caller to find out", []string{missing}, []kubeconfig.Found{named(missing)}},
		{"takes a link that is named for a file", []string{link}, []kubeconfig.Found{named(link)}},
		{"finds nothing without paths", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := must.Get(kubeconfig.Find(t.Context(), test.paths))(t)
			if diff := cmp.Diff(test.want, got, cmpopts.EquateErrors()); diff != "" {
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
