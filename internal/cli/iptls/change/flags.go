package change

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
)

// Flags are what the commands have that change the CredentialIssuer.
type Flags struct {
	DryRun     string
	Diff       bool
	Wait       bool
	NoRollback bool
}

// AddFlags adds them to a command, and those of its session.
func (c *Flags) AddFlags(cmd *cobra.Command, f *factory.Factory, s *session.Session) {
	flags := cmd.Flags()
	flags.StringVar(&c.DryRun, "dry-run", session.DryRunNone,
		`change nothing: "client" only looks and checks, "server" also lets the API server validate`)
	flags.Lookup("dry-run").NoOptDefVal = session.DryRunClient
	flags.BoolVar(&c.Diff, "diff", false, "show the fields that change, before and after")
	flags.BoolVar(&c.Wait, "wait", true, "wait until the endpoint presents the certificate")
	flags.BoolVar(&c.NoRollback, "no-rollback", false, "leave the new configuration in place when it does not take "+
		"effect in time")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"dry-run": factory.CompleteValues(session.DryRunNone, session.DryRunClient, session.DryRunServer),
	})
	s.AddFlags(cmd, f, 2*time.Minute, factory.Formats()...)
}

// Validate checks the flags of a command, and those of its session.
func (c *Flags) Validate(s *session.Session) error {
	if err := s.Validate(factory.Formats()...); err != nil {
		return err
	}
	return factory.CheckOneOf("dry-run", c.DryRun, session.DryRunNone, session.DryRunClient, session.DryRunServer)
}
