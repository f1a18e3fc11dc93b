// Package explain implements `pinniped explain`.
package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/viper"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Options holds the inputs of the command; a test fills it directly.
type Options struct {
	genericiooptions.IOStreams
	Style  ui.Style
	Code   string // empty: list all codes
	Output string
}

// NewCommand returns the command. secret explains whether a Secret of another namespace may be used: it handles
// arguments with a slash, and its flags are added.
func NewCommand(f *factory.Factory, secret *cobra.Command) *cobra.Command {
	o := &Options{IOStreams: f.IOStreams}
	ofSecret := strings.Replace(secret.Long, "Explain", "explain", 1)
	cmd := &cobra.Command{
		Use:   "explain [CODE | NAMESPACE/NAME]",
		Short: "Explain a finding, or the permission for a Secret",
		Long: `Explain a code that "pinniped ip-tls" or the CredentialIssuer's status reports: its cause, consequence and fix.
Without a code, list all codes.

With NAMESPACE/NAME: ` + ofSecret,
		Example: `  pinniped explain NameNotCovered
  pinniped explain
  pinniped explain -o json

` + secret.Example,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return factory.NoArgs(cmd, args[1:])
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return described(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && strings.Contains(args[0], "/") {
				if err := f.ApplyConfig(viper.New(), secret); err != nil {
					return err
				}
				secret.SetContext(cmd.Context())
				return secret.RunE(secret, args)
			}
			if len(args) > 0 {
				o.Code = args[0]
			}
			o.Style, o.Output = f.Style(f.Out), cmd.Flag("output").Value.String()
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run()
		},
	}
	cmd.Flags().AddFlagSet(secret.Flags())
	return factory.WithoutConfig(cmd) // works even if the configuration is broken
}

// described returns the codes for shell completion, each with its cause.
func described() []string {
	all := codes()
	for i, code := range all {
		if e, ok := lookUp(code); ok {
			all[i] = cobra.CompletionWithDesc(code, e.Cause)
		}
	}
	return all
}

func codes() []string {
	all := certs.Codes()
	names := make([]string, len(all))
	for i, code := range all {
		names[i] = string(code)
	}
	for _, e := range agentCodes() {
		names = append(names, string(e.Code))
	}
	return names
}

// Validate checks the argument and the flags. Codes are case-insensitive.
func (o *Options) Validate() error {
	if err := factory.CheckOutput(o.Output, factory.Formats()...); err != nil {
		return err
	}
	if o.Code == "" {
		return nil
	}
	at := slices.IndexFunc(codes(), func(name string) bool { return strings.EqualFold(name, o.Code) })
	if at < 0 {
		err := ui.Usage(fmt.Errorf("there is no code %q", o.Code))
		if near := factory.Nearest(o.Code, codes()); near != "" {
			return ui.WithHint(err, "did you mean %q? run %q for the list", near, "pinniped explain")
		}
		return ui.WithHint(err, "run %q for the list", "pinniped explain")
	}
	o.Code = codes()[at]
	return nil
}

// Run prints one explanation, or all of them.
func (o *Options) Run() error {
	if e, ok := lookUp(o.Code); ok {
		one := &result.CodeExplanation{Explanation: e}
		return result.Print(o.Out, o.Output, one, nil, func() ([]byte, error) { return o.one(e), nil })
	}
	all := &result.CodeExplanationList{}
	for _, code := range certs.Codes() {
		e, _ := certs.Explain(code)
		all.Items = append(all.Items, e)
	}
	return result.Print(
		o.Out,
		o.Output,
		all,
		nil,
		func() ([]byte, error) { return o.all(append(all.Items, agentCodes()...)) },
	)
}

func (o *Options) all(explanations []certs.Explanation) ([]byte, error) {
	var rows [][]string
	for _, e := range explanations {
		rows = append(rows, []string{string(e.Code), o.severity(e.Severity), e.Cause})
	}
	var out strings.Builder
	err := ui.Table(&out, []string{"code", "severity", "cause"}, rows)
	return []byte(out.String()), err
}

func (o *Options) one(e certs.Explanation) []byte {
	var out strings.Builder
	allow := ""
	if e.Allowable {
		allow = fmt.Sprintf("; --allow %s accepts it", e.Code)
	}
	fmt.Fprintf(&out, "%s (%s%s)\n\n", o.Style.Bold(string(e.Code)), o.severity(e.Severity), allow)
	fmt.Fprintf(&out, "Cause:        %s\n", e.Cause)
	fmt.Fprintf(&out, "Consequence:  %s\n", e.Consequence)
	fmt.Fprintf(&out, "What to do:   %s\n", e.Fix)
	if e.Example != "" {
		fmt.Fprintf(&out, "\nExample:\n  %s\n", strings.ReplaceAll(e.Example, "\n", "\n  "))
	}
	return []byte(out.String())
}

func (o *Options) severity(s certs.Severity) string {
	switch s {
	case certs.SeverityError:
		return o.Style.Bad(s.String())
	case certs.SeverityWarning:
		return o.Style.Caution(s.String())
	default:
		return s.String()
	}
}
