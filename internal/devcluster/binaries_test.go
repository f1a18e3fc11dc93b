package devcluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFinder(t *testing.T) {
	t.Parallel()
	notOnPath := func(string) (string, error) { return "", exec.ErrNotFound }

	root := t.TempDir()
	nested := filepath.Join(root, "hack", "controlplane")
	writeFile(t, filepath.Join(root, "go.mod"), "// comment\n\nmodule "+modulePath+"\n", 0o600)
	writeFile(t, filepath.Join(nested, "go.mod"), "module "+modulePath+"/hack/controlplane\n", 0o600)
	built := filepath.Join(root, "bin", "controlplane", exe("etcd"))
	builtKubectl := filepath.Join(root, "bin", "controlplane", exe("kubectl"))
	writeFile(t, built, "", 0o700)
	writeFile(t, builtKubectl, "", 0o700)

	assets := t.TempDir()
	asset := filepath.Join(assets, exe("etcd"))
	writeFile(t, asset, "", 0o700)

	otherModule := t.TempDir()
	writeFile(t, filepath.Join(otherModule, "go.mod"), "module example.com/other\n", 0o600)

	for _, test := range []struct {
		name    string
		finder  finder
		program string
		want    string
		wantErr string
	}{
		{
			name:    "prefers KUBEBUILDER_ASSETS",
			finder:  finder{assets: assets, starts: []string{root}},
			program: etcdProgram,
			want:    asset,
		},
		{
			name:    "takes bin/controlplane when KUBEBUILDER_ASSETS lacks the program",
			finder:  finder{assets: t.TempDir(), starts: []string{root}},
			program: etcdProgram,
			want:    built,
		},
		{
			name:    "finds the repository from a folder of a nested module",
			finder:  finder{starts: []string{nested}},
			program: etcdProgram,
			want:    built,
		},
		{
			name:    "goes on to the next start",
			finder:  finder{starts: []string{otherModule, root}},
			program: etcdProgram,
			want:    built,
		},
		{
			name:    "says how to build what is missing",
			finder:  finder{assets: assets, starts: []string{root}},
			program: apiServerProgram,
			wantErr: `no kube-apiserver program (looked for ` + filepath.Join(assets, exe("kube-apiserver")) + `, ` +
				filepath.Join(root, "bin", "controlplane", exe("kube-apiserver")) + `): run "make controlplane"`,
		},
		{
			name:    "says so outside the repository",
			finder:  finder{starts: []string{otherModule}},
			program: etcdProgram,
			wantErr: `no etcd program (looked for KUBEBUILDER_ASSETS (not set), bin/controlplane (not inside the repository)): run "make controlplane"`,
		},
		{
			name:    "names the script for programs that make controlplane leaves out",
			finder:  finder{starts: []string{otherModule}},
			program: controllerManagerProgram,
			wantErr: `no kube-controller-manager program (looked for KUBEBUILDER_ASSETS (not set), bin/controlplane (not inside the repository)): run "hack/controlplane/build.sh kube-controller-manager"`,
		},
		{
			name:    "looks for the version that KUBERNETES names",
			finder:  finder{starts: []string{root}, version: "1.31", lookPath: notOnPath},
			program: kubectlProgram,
			wantErr: `no kubectl program (looked for PATH, KUBEBUILDER_ASSETS (not set), ` +
				filepath.Join(root, "bin", "controlplane-1.31", exe("kubectl")) +
				`): run "KUBERNETES=1.31 hack/controlplane/build.sh kubectl"`,
		},
		{
			name:    "prefers the user's own kubectl",
			finder:  finder{starts: []string{root}, lookPath: func(string) (string, error) { return "/usr/bin/kubectl", nil }},
			program: kubectlProgram,
			want:    "/usr/bin/kubectl",
		},
		{
			name:    "takes the built kubectl",
			finder:  finder{starts: []string{root}, lookPath: notOnPath},
			program: kubectlProgram,
			want:    builtKubectl,
		},
		{
			name:    "says how to build kubectl",
			finder:  finder{starts: []string{otherModule}, lookPath: notOnPath},
			program: kubectlProgram,
			wantErr: `no kubectl program (looked for PATH, KUBEBUILDER_ASSETS (not set), bin/controlplane (not inside the repository)): run "hack/controlplane/build.sh kubectl"`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			find := test.finder.program
			if test.program == kubectlProgram {
				find = func(string) (string, error) { return test.finder.kubectl() }
			}
			got, err := find(test.program)
			if diff := cmp.Diff(test.wantErr, errorText(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("path (-want +got):\n%s", diff)
			}
			if missing := new(MissingProgramError); err != nil && !errors.As(err, &missing) {
				t.Errorf("want a MissingProgramError, got %T", err)
			}
		})
	}
}

func TestStartWithoutPrograms(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cluster")
	cluster, err := start(t.Context(), Options{Dir: dir}, finder{starts: []string{t.TempDir()}})
	if cluster != nil {
		t.Error("want no cluster")
	}
	want := `starting the local control plane: no etcd program (looked for KUBEBUILDER_ASSETS (not set), ` +
		`bin/controlplane (not inside the repository)): run "make controlplane"`
	if diff := cmp.Diff(want, errorText(err)); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("want no directory, got %v", err)
	}
}

func TestSystemFinderFindsThisRepository(t *testing.T) {
	t.Parallel()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Dir(filepath.Dir(wd))
	for _, start := range systemFinder().starts {
		if diff := cmp.Diff(want, repositoryRoot(start)); diff != "" {
			t.Errorf("root of %q (-want +got):\n%s", start, diff)
		}
	}
}

func exe(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func writeFile(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
