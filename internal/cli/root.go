// Package cli builds the command tree of pinniped, prints errors and hints, and chooses the exit code.
package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/viper"

	"github.com/pinniped-toolkit/pinniped/internal/cli/explain"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/getkubeconfig"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls"
	"github.com/pinniped-toolkit/pinniped/internal/cli/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/internal/cli/logout"
	"github.com/pinniped-toolkit/pinniped/internal/cli/migrate"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/run"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/cli/version"
	"github.com/pinniped-toolkit/pinniped/internal/cli/whoami"
)

// New returns a new command tree, which shares no state with others.
func New(f *factory.Factory) *cobra.Command {
	var verbosity int
	var tellVersion bool
	root := factory.Group(&cobra.Command{
		Use:   "pinniped",
		Short: "Log in to clusters via a proxy that serves your certificate",
		Long: `pinniped creates kubeconfigs, logs users in as kubectl's credential plugin, and manages the TLS certificate of the
cluster's impersonation proxy.

Flags that many commands share can also be set in the environment (PINNIPED_ followed by the flag's name in upper case,
with underscores) and in ~/.config/pinniped/config.yaml.

Exit codes: 0 done, 1 failed, 2 wrong usage (see "pinniped help exit-codes")`,
		Example: `  pinniped get kubeconfig --static-token-env TOKEN -o user.yaml
  pinniped whoami --kubeconfig user.yaml
  pinniped ip-tls set --secret proxy-tls`,

		SilenceErrors: true,
		SilenceUsage:  true,
	})
	// cobra's own --version prints with text/template, for which the linker keeps every exported method. That adds 4
	// MB.
	root.Flags().BoolVar(&tellVersion, "version", false, "version for pinniped")
	group := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if !tellVersion {
			return group(cmd, args)
		}
		_, err := fmt.Fprintln(f.Out, version.Of(f).GitVersion)
		return err
	}
	flags := root.PersistentFlags()
	flags.BoolVarP(&f.Quiet, "quiet", "q", false, "print no progress to stderr")
	flags.IntVarP(&verbosity, "verbosity", "v", 0, "log requests to the cluster (on stderr), at a level from 1 to 7")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if ui.HintOf(err) != "" {
			return ui.Usage(err)
		}
		hint := fmt.Sprintf("run %q for the flags", cmd.CommandPath()+" --help")
		if near := factory.NearestFlag(cmd, err); near != "" {
			hint = fmt.Sprintf("did you mean --%s? %s", near, hint)
		}
		return ui.WithHint(ui.Usage(err), "%s", hint)
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if verbosity != 0 {
			f.SetVerbosity(verbosity)
		}
		if err := f.ApplyConfig(viper.New(), cmd); err != nil {
			return err
		}
		return f.ExpandPathsIn(cmd.Flags())
	}
	root.SetIn(f.In)
	root.SetOut(f.Out)
	root.SetErr(f.ErrOut)
	root.SetArgs(f.Args)

	get := factory.Group(&cobra.Command{
		Use: "get", Short: "Create a kubeconfig", Example: "  pinniped get kubeconfig --static-token-env TOKEN -o user.yaml",
	})
	get.AddCommand(getkubeconfig.NewCommand(f))
	root.AddCommand(
		explain.NewCommand(f, iptls.NewExplainCommand(f)),
		get,
		iptls.NewCommand(f),
		kubeconfig.NewCommand(f),
		login.NewCommand(f),
		logout.NewCommand(f),
		migrate.NewCommand(f),
		run.NewCommand(f),
		run.NewKubectlCommand(f),
		whoami.NewCommand(f),
		version.NewCommand(f),
		exitCodesTopic(),
	)
	rename(root)
	setHelp(f, root)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Run, cmd.RunE = nil, func(cmd *cobra.Command, args []string) error { return help(f, cmd, args) }
			factory.WithoutConfig(cmd)
		case "completion":
			factory.WithoutConfig(cmd)
		}
	}
	return root
}

// help prints the whole help of the command that args name. cobra's own prints the root's help for an unknown command.
func help(f *factory.Factory, cmd *cobra.Command, args []string) error {
	of, rest, err := cmd.Root().Find(args)
	if err != nil {
		return ui.Usage(err)
	}
	if len(rest) > 0 {
		return factory.Unknown(of, rest[0])
	}
	if of.Name() == exitCodes {
		_, err := fmt.Fprintln(f.Out, of.Long)
		return err
	}
	printHelp(f, of, long(of))
	return nil
}

const exitCodes = "exit-codes"

// exitCodesTopic returns the topic of `pinniped help exit-codes`.
func exitCodesTopic() *cobra.Command {
	var text strings.Builder
	text.WriteString("Exit codes of pinniped; scripts may rely on them.\n")
	for _, one := range ui.ExitCodes() {
		fmt.Fprintf(&text, "\n%4d  %s", one.Code, strings.ReplaceAll(one.Meaning, "`", `"`))
	}
	return &cobra.Command{Use: exitCodes, Short: "List the exit codes", Long: text.String(), Hidden: true}
}

// Main runs the command line in f.Args, prints errors, and returns the process's exit code.
func Main(ctx context.Context, f *factory.Factory) int {
	if f.Args == nil {
		f.Args = []string{} // cobra takes nil for os.Args
	}
	cmd, err := New(f).ExecuteContextC(ctx)
	if err == nil {
		return ui.ExitDone
	}
	if ended, ok := errors.AsType[*ui.Ended](err); ok {
		return ended.Code
	}
	style := f.Style(f.ErrOut)
	interrupted, hint := ctx.Err() != nil, ui.HintOf(err)
	text := ui.ErrorText(err)
	if interrupted && hint == "" && errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	_, _ = fmt.Fprintf(f.ErrOut, "%s %s\n", style.Bad("error:"), text)
	if hint != "" {
		_, _ = fmt.Fprintf(f.ErrOut, "%s %s\n", style.Caution("hint:"), ui.Lines(hint))
	}
	if interrupted {
		err = ui.WithExitCode(err, ui.ExitInterrupted)
	}
	printFailure(f, cmd, err)
	return ui.ExitCodeOf(err)
}

// printFailure prints an object for programs, unless the command has already printed one with err.
func printFailure(f *factory.Factory, cmd *cobra.Command, err error) {
	format := factory.OutputOf(cmd, f.Args)
	if !result.Machine(format) || result.Printed(err) {
		return
	}
	if encoded, failed := result.Encode(format, result.NewFailure(err)); failed == nil {
		_, _ = f.Out.Write(encoded) // the exit code reports the failure
	}
}
