// Package iptls implements `pinniped ip-tls`: the serving certificate of the impersonation proxy.
//
// Each command gathers what there is in the cluster (gather.go), decides without a cluster (plan.go, status.go), and
// prints (result.go).
package iptls

import (
	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// NewCommand returns the command and its subcommands.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(&cobra.Command{
		Use:   "ip-tls",
		Short: "Look after the certificate in front of the impersonation proxy",
		Long: `Look after the certificate that the impersonation proxy presents to clients: an administrator's own, from a Secret in
the agent's namespace.`,
		Example: `  pinniped ip-tls set --secret proxy-tls --external-endpoint proxy.example.com --ca-bundle ca.pem`,
	})
	cmd.AddCommand(newSetCommand(f))
	return cmd
}
