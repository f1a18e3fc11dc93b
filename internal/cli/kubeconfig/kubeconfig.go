// Package kubeconfig implements `pinniped kubeconfig`: commands that change kubeconfigs which users already have.
package kubeconfig

import (
	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(&cobra.Command{
		Use:     "kubeconfig",
		Short:   "Keep existing kubeconfigs in step with a cluster",
		Example: "  pinniped kubeconfig rotate ~/.kube/config",
	})
	cmd.AddCommand(newRotateCommand(f))
	return cmd
}
