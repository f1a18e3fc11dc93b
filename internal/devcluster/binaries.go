package devcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/version"
)

const (
	modulePath   = "github.com/pinniped-toolkit/pinniped"
	assetsEnv    = "KUBEBUILDER_ASSETS"
	versionEnv   = "KUBERNETES" // for example 1.34, as in `make controlplane`; the default version if empty
	programsPath = "bin/controlplane"

	etcdProgram              = "etcd"
	apiServerProgram         = "kube-apiserver"
	controllerManagerProgram = "kube-controller-manager"
	kubectlProgram           = "kubectl"
)

// MissingProgramError is the error when a program of the control plane is not found.
type MissingProgramError struct {
	// Program is the name, such as "kube-apiserver".
	Program string
	// Looked lists the files and variables that were tried.
	Looked []string
	// Command is the shell command that builds the program.
	Command string
}

func (e *MissingProgramError) Error() string {
	return fmt.Sprintf("no %s program (looked for %s): run %q", e.Program, strings.Join(e.Looked, ", "), e.Command)
}

// finder finds programs. Its fields are the environment, which a test can replace.
type finder struct {
	assets   string                            // KUBEBUILDER_ASSETS
	version  string                            // KUBERNETES
	starts   []string                          // directories in or below the repository
	lookPath func(name string) (string, error) // exec.LookPath
}

func systemFinder() finder {
	f := finder{assets: os.Getenv(assetsEnv), version: os.Getenv(versionEnv), lookPath: exec.LookPath}
	if wd, err := os.Getwd(); err == nil {
		f.starts = append(f.starts, wd)
	}
	// With -trimpath this is not a real path, so it finds nothing.
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		f.starts = append(f.starts, filepath.Dir(file))
	}
	return f
}

// program returns the path of etcd, kube-apiserver or kube-controller-manager.
func (f finder) program(name string) (string, error) {
	path, looked := f.find(name)
	if path != "" {
		return path, nil
	}
	return "", f.missing(name, looked)
}

// kubectl returns the path of kubectl: the one on the PATH, else one next to the control plane.
func (f finder) kubectl() (string, error) {
	if path, err := f.lookPath(kubectlProgram); err == nil {
		return path, nil
	}
	path, looked := f.find(kubectlProgram)
	if path != "" {
		return path, nil
	}
	return "", f.missing(kubectlProgram, append([]string{"PATH"}, looked...))
}

// missing returns the error for a program. `make controlplane` builds etcd and kube-apiserver.
func (f finder) missing(name string, looked []string) error {
	if name == etcdProgram || name == apiServerProgram {
		command := "make controlplane"
		if f.version != "" {
			command += " " + versionEnv + "=" + f.version
		}
		return &MissingProgramError{Program: name, Looked: looked, Command: command}
	}
	command := "hack/controlplane/build.sh " + name
	if f.version != "" {
		command = versionEnv + "=" + f.version + " " + command
	}
	return &MissingProgramError{Program: name, Looked: looked, Command: command}
}

// programs is the directory of the programs in the repository.
func (f finder) programs() string {
	if f.version != "" {
		return programsPath + "-" + f.version
	}
	return programsPath
}

// find returns the first file named name in the known places, or else the places.
func (f finder) find(name string) (path string, looked []string) {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if f.assets == "" {
		looked = append(looked, assetsEnv+" (not set)")
	} else {
		candidate := filepath.Join(f.assets, name)
		if isProgram(candidate) {
			return absolute(candidate), nil
		}
		looked = append(looked, candidate)
	}
	tried := map[string]bool{}
	for _, start := range f.starts {
		root := repositoryRoot(start)
		if root == "" || tried[root] {
			continue
		}
		tried[root] = true
		candidate := filepath.Join(root, filepath.FromSlash(f.programs()), name)
		if isProgram(candidate) {
			return candidate, nil
		}
		looked = append(looked, candidate)
	}
	if len(tried) == 0 {
		looked = append(looked, f.programs()+" (not inside the repository)")
	}
	return "", looked
}

// absolute makes a path valid for programs that are started in another directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && (runtime.GOOS == "windows" || info.Mode()&0o111 != 0)
}

var moduleLine = regexp.MustCompile(`(?m)^\s*module\s+"?` + regexp.QuoteMeta(modulePath) + `"?\s*$`)

// repositoryRoot returns the nearest directory at or above start whose go.mod is this module's, or "". It skips nested
// modules, such as hack/controlplane.
func repositoryRoot(start string) string {
	for dir := start; ; dir = filepath.Dir(dir) {
		if content, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && moduleLine.Match(content) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

var versions sync.Map // of programs by path: reading one takes a third of a second

// versionOf returns the version that a program of Kubernetes prints.
func versionOf(ctx context.Context, path string) (*version.Version, error) {
	if known, ok := versions.Load(path); ok {
		return known.(*version.Version), nil
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output() // Kubernetes v1.34.4
	if err != nil {
		return nil, fmt.Errorf("asking %s for its version: %w", path, err)
	}
	parsed, err := version.ParseGeneric(strings.TrimSpace(strings.TrimPrefix(string(out), "Kubernetes ")))
	if err != nil {
		return nil, fmt.Errorf("asking %s for its version: %w", path, err)
	}
	versions.Store(path, parsed)
	return parsed, nil
}
