package login

import (
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// origin returns the kubeconfig that runs a login with these arguments, as a word of a command line, and FILE if it
// cannot be found out.
func origin(f *factory.Factory, args []string) string {
	path, _, user := findUser(f, args)
	if user == nil {
		return "FILE"
	}
	return ui.ShellWord(path)
}
