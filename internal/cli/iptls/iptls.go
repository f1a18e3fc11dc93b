// Package iptls implements `pinniped ip-tls`: the serving certificate of the impersonation proxy.
//
// Each verb has its own package. They share package session, which talks to the cluster and the endpoint, and package
// plan, which decides. Imports go from the verbs to session, and from session to plan.
package iptls

import (
	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/check"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/delegate"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/history"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/manifest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/status"
)

// NewCommand returns the command and its subcommands.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(&cobra.Command{
		Use:   "ip-tls",
		Short: "Manage the impersonation proxy's serving certificate",
		Long: `Manage the certificate that the impersonation proxy presents to clients. The Secret with this certificate is in the
agent's namespace, or in another namespace whose owner permits its use.`,
		Example: `  pinniped ip-tls set --secret proxy-tls --external-endpoint proxy.example.com --ca-bundle ca.pem
  pinniped ip-tls check --timeline`,
	})
	cmd.AddCommand(change.NewSetCommand(f), change.NewUnsetCommand(f), change.NewUndoCommand(f),
		check.NewCommand(f), status.NewCommand(f), history.NewCommand(f),
		delegate.NewCommand(f), delegate.NewExplainCommand(f), manifest.NewCommand(f))
	return cmd
}

// NewExplainCommand returns the part of `pinniped explain` for Secrets of other namespaces.
func NewExplainCommand(f *factory.Factory) *cobra.Command { return delegate.NewExplainCommand(f) }
