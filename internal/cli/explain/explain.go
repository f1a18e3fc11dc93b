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
	cmd := &cobra.Command{
		Use: "explain [CODE | NAMESPACE/NAME]", Short: "Explain a finding, or the permission for a Secret",
		Long: `Explain a code that "pinniped ip-tls" or the CredentialIssuer's status reports: its cause, consequence and fix.
Without a code, list all codes.

With NAMESPACE/NAME: ` + strings.Replace(secret.Long, "Explain", "explain", 1),
		Example: `  pinniped explain NameNotCovered
  pinniped explain
  pinniped explain -o json

` + secret.Example,
		Args: func(cmd *cobra.Command, args []string) error { return factory.NoArgs(cmd, args[min(len(args), 1):]) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var all []string
			for _, e := range explanations() {
				all = append(all, cobra.CompletionWithDesc(string(e.Code), e.Cause))
			}
			return all, cobra.ShellCompDirectiveNoFileComp
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

// explanations returns those of all codes: first those of certificate checks, then the agent's.
func explanations() []certs.Explanation { return append(ofChecks(), agentCodes()...) }

func ofChecks() []certs.Explanation {
	var all []certs.Explanation
	for _, code := range certs.Codes() {
		e, _ := certs.Explain(code)
		all = append(all, e)
	}
	return all
}

// Validate checks the argument and the flags. Codes are case-insensitive.
func (o *Options) Validate() error {
	if err := factory.CheckOutput(o.Output, factory.Formats()...); err != nil {
		return err
	}
	if o.Code == "" {
		return nil
	}
	var codes []string
	for _, e := range explanations() {
		codes = append(codes, string(e.Code))
	}
	at := slices.IndexFunc(codes, func(name string) bool { return strings.EqualFold(name, o.Code) })
	if at < 0 {
		err := ui.Usage(fmt.Errorf("there is no code %q", o.Code))
		if near := factory.Nearest(o.Code, codes); near != "" {
			return ui.WithHint(err, "did you mean %q? run %q for the list", near, "pinniped explain")
		}
		return ui.WithHint(err, "run %q for the list", "pinniped explain")
	}
	o.Code = codes[at]
	return nil
}

// Run prints one explanation, or all of them.
func (o *Options) Run() error {
	for _, e := range explanations() {
		if string(e.Code) == o.Code {
			one := &result.CodeExplanation{Explanation: e}
			return result.Print(o.Out, o.Output, one, nil, func() ([]byte, error) { return o.one(e), nil })
		}
	}
	return result.Print(o.Out, o.Output, &result.CodeExplanationList{Items: ofChecks()}, nil, o.all)
}

func (o *Options) all() ([]byte, error) {
	var rows [][]string
	for _, e := range explanations() {
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
	fmt.Fprintf(&out, "Cause:        %s\nConsequence:  %s\nWhat to do:   %s\n", e.Cause, e.Consequence, e.Fix)
	if e.Example != "" {
		fmt.Fprintf(&out, "\nExample:\n  %s\n", strings.ReplaceAll(e.Example, "\n", "\n  "))
	}
	return []byte(out.String())
}

func (o *Options) severity(s certs.Severity) string {
	if s == certs.SeverityError {
		return o.Style.Bad(s.String())
	}
	if s == certs.SeverityWarning {
		return o.Style.Caution(s.String())
	}
	return s.String()
}
