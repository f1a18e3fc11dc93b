// Package iptls implements `pinniped ip-tls`: the serving certificate of the impersonation proxy.
//
// Each command gathers what there is in the cluster (gather.go), decides without a cluster (plan.go, status.go), and
// prints (result.go).
package iptls

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// NewCommand returns the command and its subcommands.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(&cobra.Command{
		Use:   "ip-tls",
		Short: "Look after the certificate in front of the impersonation proxy",
		Long: `Look after the certificate that the impersonation proxy presents to clients: an administrator's own, from a Secret of
the agent's namespace, or of another one whose owner permits that.`,
		Example: `  pinniped ip-tls set --secret proxy-tls --external-endpoint proxy.example.com --ca-bundle ca.pem
  pinniped ip-tls check --timeline`,
	})
	cmd.AddCommand(newSetCommand(f), newCheckCommand(f), newStatusCommand(f), newUnsetCommand(f), newUndoCommand(f), newApplyCommand(f),
		newRotateCommand(f), newDelegateCommand(f), newExplainCommand(f))
	return cmd
}

// command is what each of them is.
type command interface {
	Validate() error
	Complete() error
	Run(ctx context.Context) error
}

// execute runs a command whose flags are filled in.
func execute(ctx context.Context, o command) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if err := o.Complete(); err != nil {
		return err
	}
	return o.Run(ctx)
}
