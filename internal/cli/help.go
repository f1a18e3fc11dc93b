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

// helpWidth is the maximum width of the help, in columns.
const helpWidth = 120

// flagGroup is a group of flags in the help. The first group also gets the flags that no other group has.
type flagGroup struct {
	title string
	// names of flags, separated by spaces; one that ends with "-" is a prefix.
	names string
}

func (g flagGroup) has(flag *pflag.Flag) bool {
	return slices.ContainsFunc(strings.Fields(g.names), func(name string) bool {
		return name == flag.Name || strings.HasSuffix(name, "-") && strings.HasPrefix(flag.Name, name)
	})
}

// flagGroups returns the groups in the order of the help: specific to the command first, common to all commands last.
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

// setHelp gives root and its subcommands a help of at most two screens: the first paragraph of the description, the
// exit codes, and the flags in groups. "pinniped help COMMAND" prints the whole description.
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

// width returns the terminal's width, between 60 and helpWidth columns.
func width(f *factory.Factory) int {
	if file, ok := f.Out.(interface{ Fd() uintptr }); ok {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil {
			return min(max(columns, 60), helpWidth)
		}
	}
	return helpWidth
}

func long(cmd *cobra.Command) string { return strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short+".")) }

// brief returns the first paragraph of a description, with the list below it, and the exit codes.
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

// usage returns the examples, subcommands and flags of a command.
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
	cmd.InheritedFlags() // adds the flags of root
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
