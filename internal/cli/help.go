package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// helpWidth is how wide the help is where it is not printed on a narrower terminal.
const helpWidth = 120

// flagGroup is a group of flags in the help. The first ends with what no other one takes.
type flagGroup struct {
	title string
	// names of flags; one that ends with "-" is what their names begin with.
	names string
}

func (g flagGroup) has(flag *pflag.Flag) bool {
	return slices.ContainsFunc(strings.Fields(g.names), func(name string) bool {
		return name == flag.Name || strings.HasSuffix(name, "-") && strings.HasPrefix(flag.Name, name)
	})
}

// flagGroups are in the order of the help: what one command is about comes first, what all have in common last.
func flagGroups() []flagGroup {
	return []flagGroup{
		{"Flags", ""},
		{"Flags for OpenID Connect", "oidc- upstream-identity-provider- issuer- scopes listen-port skip-browser " +
			"skip-listen session-cache request-audience client-id credential-cache"},
		{"Flags for names in the kubeconfig", "context-name cluster-name user-name generated-name-suffix " +
			"install-hint pinniped-cli-path"},
		{"Flags for many clusters", "admin-kubeconfig contexts selector expect-ca"},
		{"Flags for the cluster", "kubeconfig kubeconfig-context credential-issuer namespace api-group-suffix timeout"},
		{"Flags for the output", "output diff quiet verbosity help"},
	}
}

// setHelp gives root and the commands below it a help of two screens at most: of a long description the first paragraph
// and the exit codes, and flags in groups. "pinniped help COMMAND" prints all of it.
func setHelp(f *factory.Factory, root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(f, cmd, brief(cmd)) })
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := fmt.Fprint(f.Out, usage(cmd, width(f)))
		return err
	})
}

func printHelp(f *factory.Factory, cmd *cobra.Command, text string) {
	_, _ = fmt.Fprintf(f.Out, "%s\n\n%s", text, usage(cmd, width(f)))
}

// width is that of the terminal, as far as lines can be read at it.
func width(f *factory.Factory) int {
	if file, ok := f.Out.(interface{ Fd() uintptr }); ok {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil {
			return min(max(columns, 60), helpWidth)
		}
	}
	return helpWidth
}

func long(cmd *cobra.Command) string { return strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short+".")) }

// brief is the first paragraph of a description with the list below it, and the line of exit codes.
func brief(cmd *cobra.Command) string {
	shown, rest, more := strings.Cut(long(cmd), "\n\n")
	if strings.HasSuffix(shown, ":") {
		var list string
		list, rest, more = strings.Cut(rest, "\n\n")
		shown += "\n\n" + list
	}
	if !more {
		return shown
	}
	if codes := strings.Index(rest, "Exit codes: "); codes >= 0 {
		shown += "\n\n" + rest[codes:]
		more = codes > 0
	}
	if more {
		name := cmd.Root().Name()
		shown += fmt.Sprintf("\n\nMore: %q", name+" help"+strings.TrimPrefix(cmd.CommandPath(), name))
	}
	return shown
}

// usage is how a command is called: its examples, commands below it and flags.
func usage(cmd *cobra.Command, columns int) string {
	var out strings.Builder
	out.WriteString("Usage:\n")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "  %s [command]\n", cmd.CommandPath())
	} else {
		fmt.Fprintf(&out, "  %s\n", cmd.UseLine())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&out, "\nExamples:\n%s\n", strings.Trim(cmd.Example, "\n"))
	}
	if cmd.HasAvailableSubCommands() {
		out.WriteString("\nCommands:\n")
		for _, below := range cmd.Commands() {
			if below.IsAvailableCommand() || below.Name() == "help" {
				fmt.Fprintf(&out, "  %-*s %s\n", cmd.NamePadding(), below.Name(), below.Short)
			}
		}
	}
	groups := flagGroups()
	sets := make([]*pflag.FlagSet, len(groups))
	for i := range sets {
		sets[i] = pflag.NewFlagSet(groups[i].title, pflag.ContinueOnError)
	}
	cmd.InitDefaultHelpFlag()
	cmd.InheritedFlags() // so that those of root are among them
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		into := max(0, slices.IndexFunc(groups, func(g flagGroup) bool { return g.has(flag) }))
		sets[into].AddFlag(flag)
	})
	for i, set := range sets {
		if set.HasAvailableFlags() {
			fmt.Fprintf(&out, "\n%s:\n%s\n", groups[i].title, strings.TrimRight(set.FlagUsagesWrapped(columns), "\n"))
		}
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "\nRun %q for more about a command.\n", cmd.CommandPath()+" [command] --help")
	}
	return out.String()
}
