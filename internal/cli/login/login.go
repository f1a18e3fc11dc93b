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
		Short: "Log in as kubectl's credential plugin",
		Long: `Log in as kubectl's credential plugin. "pinniped get kubeconfig" writes these commands into a kubeconfig, and kubectl runs
them. You do not need to run them yourself.`,
		Example: `  # In a kubeconfig, as written by "pinniped get kubeconfig"
  pinniped login static --token-env TOKEN`,
	}))
	cmd.AddCommand(newOIDC(f), newStatic(f))
	return cmd
}
