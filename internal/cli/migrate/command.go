// Package migrate implements `pinniped migrate`: it finds what blocks the migration from Pinniped, or back to it.
//
// It reads the cluster (gather.go), decides (findings.go and one file per group of findings; pure), and prints. It
// changes nothing: it prints kubectl commands for the user to review and run.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// outputCommands is the output format that prints only the commands, as a script.
const outputCommands = "commands"

// Options holds the inputs of `pinniped migrate check`; a test fills it directly.
type Options struct {
	genericiooptions.IOStreams
	Style   ui.Style
	Cluster factory.ClusterFlags
	Back    bool
	Output  string
	Timeout time.Duration
	// Connect loads the kubeconfig, without contacting the cluster.
	Connect func(flags factory.ClusterFlags) (*discovery.Client, error)

	cluster *discovery.Client // set by Complete
}

// NewCommand returns `pinniped migrate`.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(&cobra.Command{
		Use:     "migrate",
		Short:   "Migrate from Pinniped, and go back",
		Example: "  pinniped migrate check",
	})
	cmd.AddCommand(newCheckCommand(f))
	return cmd
}

func newCheckCommand(f *factory.Factory) *cobra.Command {
	o := &Options{IOStreams: f.IOStreams, Connect: func(flags factory.ClusterFlags) (*discovery.Client, error) {
		cluster, err := f.Cluster(flags)
		if err != nil {
			return nil, err
		}
		return f.Connect(cluster, apis.DefaultGroupSuffix)
	}}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check what blocks migrating from Pinniped, or back to it",
		Long: `Check what blocks the next step of the migration from Pinniped's Concierge to this agent, and print commands that
unblock it. While Pinniped is installed, these commands prepare the cluster for "make install". Once the agent serves,
they remove the rest of Pinniped. --back checks the migration in the other direction. docs/howto/from-pinniped.md
describes each step.

"pinniped migrate check" itself changes nothing. It checks that existing clients would still verify the certificate in
spec.impersonationProxy.tls. The only Secret whose contents it reads is that certificate's. For all others, it reads
only names and owners. With -o commands, it prints only the commands, as a POSIX shell script. Read the script, then run
it with "sh -eu". The script needs kubectl and a cluster administrator's permissions.

Exit codes: 0 nothing blocks the next step, 3 the next step is blocked, 4 not permitted (see "pinniped help exit-codes")`,
		Example: `  pinniped migrate check
  pinniped migrate check -o commands > prepare.sh

  # Back to Pinniped
  pinniped migrate check --back`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Style = f.Style(f.Out)
			return factory.Execute(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.Back, "back", false, "check the rollback")
	flags.DurationVar(&o.Timeout, "timeout", time.Minute, "time limit (0: none)")
	o.Cluster.AddFlags(flags)
	factory.AddOutput(cmd, &o.Output, factory.Formats(outputCommands)...)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"kubeconfig-context": f.CompleteContexts(&o.Cluster),
	})
	return cmd
}

// Validate checks the flags.
func (o *Options) Validate() error {
	return factory.CheckOutput(o.Output, factory.Formats(outputCommands)...)
}

// Complete loads the kubeconfig.
func (o *Options) Complete() error {
	var err error
	o.cluster, err = o.Connect(o.Cluster)
	return err
}

// Run reads the cluster and prints the findings.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	seen, err := gather(ctx, o.cluster)
	if err != nil {
		if errors.Is(err, discovery.ErrForbidden) {
			err = ui.WithExitCode(err, ui.ExitNotPermitted)
		}
		return fmt.Errorf("reading what is installed: %w", err)
	}
	migration, err := decide(seen, o.Back, newKubectl(o.Cluster))
	if err != nil {
		return err
	}
	return result.Print(o.Out, o.Output, migration, refusal(migration), func() ([]byte, error) {
		if o.Output == outputCommands {
			return script(migration), nil
		}
		return o.text(migration), nil
	})
}

// refusal returns an error if a finding blocks the next step, else nil.
func refusal(migration *result.Migration) error {
	if !migration.InTheWay {
		return nil
	}
	todo := "resolve the findings, then run this command again"
	if slices.ContainsFunc(migration.Findings, func(f result.MigrationFinding) bool {
		return f.InTheWay && len(f.Commands) > 0
	}) {
		todo = "run the printed commands, then run this command again"
	}
	return ui.WithHint(ui.WithExitCode(errors.New("checking the migration: the next step is blocked"), ui.ExitRefused),
		"%s (docs/howto/from-pinniped.md)", todo)
}

// installed describes what is installed, in a sentence.
func installed(m *result.Migration) string {
	switch m.Stage {
	case result.StagePinniped:
		return fmt.Sprintf("Pinniped is installed in namespace %q (%s).", m.Namespace, m.Image)
	case result.StageRollingOut:
		return fmt.Sprintf("The agent is being rolled out in namespace %q (%s).", m.Namespace, m.Image)
	case result.StageAgent:
		return fmt.Sprintf("The agent serves in namespace %q (%s).", m.Namespace, m.Image)
	case result.StageNone:
	}
	if m.Namespace != "" {
		return fmt.Sprintf("The Concierge APIs are served from namespace %q.", m.Namespace)
	}
	return "Neither Pinniped nor the agent is installed."
}

func (o *Options) text(m *result.Migration) []byte {
	var out strings.Builder
	ui.Fprintf(&out, "%s\n", installed(m))
	for _, finding := range m.Findings {
		mark := "note"
		if finding.InTheWay {
			mark = o.Style.Bad("blocking")
		}
		ui.Fprintf(&out, "\n%s (%s): %s.\n", o.Style.Bold(string(finding.Reason)), mark, finding.Message)
		for _, object := range finding.Objects {
			ui.Fprintf(&out, "  - %s\n", object)
		}
		for i, command := range finding.Commands {
			if i == 0 {
				out.WriteString("\n")
			}
			ui.Fprintf(&out, "  %s\n", command)
		}
	}
	if m.Next != "" {
		ui.Fprintf(&out, "\nNext: %s.\n", m.Next)
	}
	return []byte(out.String())
}

// script returns the commands as a shell script, with comments.
func script(m *result.Migration) []byte {
	var out strings.Builder
	for _, finding := range m.Findings {
		if len(finding.Commands) > 0 {
			ui.Fprintf(&out, "# %s: %s.\n", finding.Reason, finding.Message)
			out.WriteString(strings.Join(finding.Commands, "\n") + "\n")
		}
	}
	return []byte(out.String())
}
