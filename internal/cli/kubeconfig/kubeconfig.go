// Package kubeconfig implements `pinniped kubeconfig`: commands about kubeconfigs that users already have.
package kubeconfig

import (
	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(&cobra.Command{
		Use:     "kubeconfig",
		Short:   "List kubeconfigs, and update their CA bundles",
		Example: "  pinniped kubeconfig ls\n  pinniped kubeconfig rotate ~/.kube/config",
	})
	cmd.AddCommand(newListCommand(f), newRotateCommand(f))
	return cmd
}
