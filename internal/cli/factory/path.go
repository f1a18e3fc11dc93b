package factory

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// pathFlags are the flags of all commands with paths as values.
var pathFlags = map[string]bool{
	"admin-kubeconfig": true, "ca-bundle": true, "cert": true, "credential-cache": true,
	"filename": true, "follow": true, "key": true, "kubeconfig": true, "kubeconfigs": true, "merge-into": true,
	"oidc-session-cache": true, "output": true, "pinniped-cli-path": true, "report": true,
	"session-cache": true, "token-file": true,
}

// ExpandPath replaces a leading "~" in path with the user's home directory. Shells do not do so after "=", in
// configuration files, or in the arguments of credential plugins.
func (f *Factory) ExpandPath(path string) (string, error) {
	if path == "" || path[0] != '~' {
		return path, nil
	}
	name, rest, _ := strings.Cut(filepath.ToSlash(path), "/")
	if name != "~" {
		return "", fmt.Errorf("expanding the path %q: only \"~\" and \"~/\" are supported; write out the home directory, "+
			"or start with \"./\" if the file has this name", path)
	}
	home, err := f.HomeDir()
	if err != nil {
		return "", fmt.Errorf("expanding the path %q: %w", path, err)
	}
	return filepath.Join(home, filepath.FromSlash(rest)), nil
}

// ExpandPaths applies ExpandPath to arguments.
func (f *Factory) ExpandPaths(paths []string) ([]string, error) {
	var all []string
	for _, path := range paths {
		path, err := f.ExpandPath(path)
		if err != nil {
			return nil, ui.Usage(err)
		}
		all = append(all, path)
	}
	return all, nil
}

// ExpandPathsIn expands the path flags in flags. The root command calls it after ApplyConfig.
func (f *Factory) ExpandPathsIn(flags *pflag.FlagSet) error {
	var failed error
	flags.VisitAll(func(flag *pflag.Flag) {
		if failed != nil || !pathFlags[flag.Name] {
			return
		}
		if several, ok := flag.Value.(pflag.SliceValue); ok {
			paths, err := f.ExpandPaths(several.GetSlice())
			if failed = err; err == nil && strings.Contains(flag.Value.String(), "~") {
				failed = several.Replace(paths)
			}
			return
		}
		before := flag.Value.String()
		path, err := f.ExpandPath(before)
		if failed = ui.Usage(err); err == nil && path != before {
			failed = flag.Value.Set(path)
		}
	})
	return failed
}
