package change

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// Flags are the common flags of the commands that change the CredentialIssuer.
type Flags struct {
	DryRun     string
	Diff       bool
	Wait       bool
	NoRollback bool
	// Kubeconfigs are files and directories with all existing kubeconfigs.
	Kubeconfigs []string
}

// AddFlags adds the flags and those of the session to a command.
func (c *Flags) AddFlags(cmd *cobra.Command, f *factory.Factory, s *session.Session) {
	flags := cmd.Flags()
	flags.StringVar(&c.DryRun, "dry-run", session.DryRunNone,
		`change nothing: with "client", only check the change; with "server", also have the API server validate it`)
	flags.Lookup("dry-run").NoOptDefVal = session.DryRunClient
	flags.BoolVar(&c.Diff, "diff", false, "show the old and new values of the fields that change")
	flags.BoolVar(&c.Wait, "wait", true, "wait until the endpoint presents the certificate")
	flags.BoolVar(&c.NoRollback, "no-rollback", false, "keep the new configuration even if it does not take "+
		"effect in time")
	flags.StringArrayVar(
		&c.Kubeconfigs,
		"kubeconfigs",
		nil,
		"serve the new certificate once every kubeconfig in this file or directory verifies it; pass all kubeconfigs in "+
			"use (repeatable)",
	)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"dry-run": factory.CompleteValues(session.DryRunNone, session.DryRunClient, session.DryRunServer),
	})
	s.AddFlags(cmd, f, 2*time.Minute, factory.Formats()...)
}

// Validate checks the flags and those of the session.
func (c *Flags) Validate(s *session.Session) error {
	if err := s.Validate(factory.Formats()...); err != nil {
		return err
	}
	for _, path := range c.Kubeconfigs { // before any change
		if _, err := os.Stat(path); err != nil {
			return ui.Usage(fmt.Errorf("reading --kubeconfigs: %w", err))
		}
	}
	return factory.CheckOneOf("dry-run", c.DryRun, session.DryRunNone, session.DryRunClient, session.DryRunServer)
}
