package login

import (
	"path/filepath"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// origin returns the kubeconfig that runs a login with these arguments, as a word of a command line, and FILE if it
// cannot be found out: kubectl does not say, and one that kubectl got with --kubeconfig is not known here.
func origin(f *factory.Factory, args []string) string {
	paths := filepath.SplitList(f.Getenv("KUBECONFIG"))
	if len(paths) == 0 {
		home, err := f.HomeDir()
		if err != nil {
			return "FILE"
		}
		paths = []string{filepath.Join(home, ".kube", "config")}
	}
	for _, path := range paths {
		config, err := kubeconfig.LoadAsWritten(path)
		if err != nil {
			continue
		}
		for _, user := range config.AuthInfos {
			if user != nil && user.Exec != nil && slices.Equal(user.Exec.Args, args) {
				return ui.ShellWord(path)
			}
		}
	}
	return "FILE"
}
