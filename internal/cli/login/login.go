// Package login implements `pinniped login`, the exec credential plugins that kubectl runs.
package login

import (
	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(factory.WithoutConfig(&cobra.Command{
		Use:   "login",
		Short: "Log in, as a credential plugin of kubectl",
		Long: `Log in, as a credential plugin of kubectl. These commands are not meant to be run by hand: "pinniped get kubeconfig"
writes them into a kubeconfig, and kubectl runs them from there.`,
		Example: `  # in a kubeconfig, as written by "pinniped get kubeconfig"
  pinniped login static --token-env TOKEN`,
	}))
	cmd.AddCommand(newOIDC(f), newStatic(f))
	return cmd
}
