// Package factory gives commands their environment: streams, configuration and clients.
package factory

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// Factory is the environment of one run of the CLI. Tests fill it; New returns that of the process.
type Factory struct {
	genericiooptions.IOStreams

	// Args are the arguments without the program's name. They are part of the key of credential caches.
	Args []string
	// Getenv and LookupEnv read the environment.
	Getenv    func(string) string
	LookupEnv func(string) (string, bool)
	// HomeDir returns the user's home directory. Commands that do not need it work without.
	HomeDir func() (string, error)
	// Executable returns the path of the running program.
	Executable func() (string, error)
	// Now is the clock.
	Now func() time.Time
	// SetVerbosity sets the level of client-go's log on stderr, for -v.
	SetVerbosity func(level int)
	// Version is the version given to the linker; empty means that of the Go build info.
	Version string

	// Inputs reads the files that flags name.
	Inputs *atomicfile.Inputs

	// Quiet disables progress output (--quiet). The root command sets it.
	Quiet bool
}

// New returns the Factory of a real process.
func New(args []string) *Factory {
	return &Factory{
		IOStreams:    genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
		Args:         args,
		Getenv:       os.Getenv,
		LookupEnv:    os.LookupEnv,
		HomeDir:      os.UserHomeDir,
		Executable:   os.Executable,
		Now:          time.Now,
		SetVerbosity: func(int) {},
		Inputs:       &atomicfile.Inputs{},
	}
}

// Progress returns the command's progress output: stderr, or none with --quiet.
func (f *Factory) Progress() *ui.Progress { return ui.NewProgress(f.ErrOut, f.Getenv, f.Quiet) }

// Style returns the colours for w, usually f.Out.
func (f *Factory) Style(w io.Writer) ui.Style { return ui.StyleFor(w, f.Getenv) }

// ConfigDir returns the directory of our files: $XDG_CONFIG_HOME/pinniped, or $HOME/.config/pinniped, on every
// operating system.
func (f *Factory) ConfigDir() (string, error) {
	if dir := f.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "pinniped"), nil
	}
	home, err := f.HomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the configuration directory: %w (set HOME or XDG_CONFIG_HOME)", err)
	}
	return filepath.Join(home, ".config", "pinniped"), nil
}

// WithTimeout returns a context for a command's --timeout flag. Zero means no limit.
func WithTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, timeout, context.DeadlineExceeded)
}

// Over is like ctx.Err, but returns context.DeadlineExceeded as soon as the deadline has passed: connections use their
// own timers, which may fire before that of ctx.
func Over(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// NoArgs is the cobra.Command.Args of a command without arguments. Any argument is a usage error.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return ui.WithHint(ui.Usage(fmt.Errorf("unexpected argument %q", args[0])), "run %q", cmd.CommandPath()+" --help")
}

// Group makes cmd a command that only has subcommands: alone it prints its help; an unknown subcommand is a usage error
// that suggests the nearest ones.
func Group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return Unknown(cmd, args[0])
	}
	return cmd
}

// Unknown returns the error for an unknown subcommand of cmd, and suggests the nearest ones.
func Unknown(cmd *cobra.Command, name string) error {
	err := ui.Usage(fmt.Errorf("unknown command %q for %q", name, cmd.CommandPath()))
	cmd.SuggestionsMinimumDistance = 2
	var near []string
	for _, other := range cmd.SuggestionsFor(name) {
		near = append(near, strconv.Quote(cmd.CommandPath()+" "+other))
	}
	if len(near) == 0 {
		near = deeper(cmd, name)
	}
	if len(near) > 0 {
		return ui.WithHint(err, "did you mean %s?", strings.Join(near, " or "))
	}
	return ui.WithHint(err, "run %q for the list of commands", cmd.CommandPath()+" --help")
}

// deeper returns the commands called name that are below subcommands of cmd, quoted.
func deeper(cmd *cobra.Command, name string) []string {
	var found []string
	for _, group := range cmd.Commands() {
		for _, below := range group.Commands() {
			if below.Name() == name {
				found = append(found, strconv.Quote(below.CommandPath()))
			}
		}
	}
	return found
}

// CheckOneOf returns a usage error if the value of a flag is not an accepted one.
func CheckOneOf(flag, value string, accepted ...string) error {
	if slices.Contains(accepted, value) {
		return nil
	}
	return ui.Usage(fmt.Errorf("invalid value %q for --%s, supported values are %q", value, flag, accepted))
}

// Command is a command after flag parsing.
type Command interface {
	// Validate checks the flags.
	Validate() error
	// Complete reads the files that flags name. It contacts no cluster.
	Complete() error
	Run(ctx context.Context) error
}

// Execute calls Validate, Complete and Run.
func Execute(ctx context.Context, c Command) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := c.Complete(); err != nil {
		return err
	}
	return c.Run(ctx)
}
