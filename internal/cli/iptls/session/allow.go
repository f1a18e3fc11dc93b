package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// AddAllowFlag adds --allow to a command. example is a code for its help.
func AddAllowFlag(cmd *cobra.Command, into *[]string, example string) {
	cmd.Flags().StringArrayVar(into, "allow", nil,
		"accept the error with this code (repeatable), for example "+example)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"allow": factory.CompleteValues(Explained(Allowable())...),
	})
}

// Explained adds to each code its cause, as a description for shell completion. It changes codes in place.
func Explained(codes []string) []string {
	for i, code := range codes {
		if e, ok := certs.Explain(certs.Code(code)); ok {
			codes[i] = cobra.CompletionWithDesc(code, e.Cause)
		}
	}
	return codes
}

// Allowable returns the codes that --allow accepts.
func Allowable() []string {
	var codes []string
	for _, code := range certs.Codes() {
		if certs.Allowable(code) {
			codes = append(codes, string(code))
		}
	}
	return codes
}

// AllowedCodes returns the codes of --allow.
func AllowedCodes(texts []string) ([]certs.Code, error) {
	var codes []certs.Code
	for _, text := range texts {
		if err := ValidateAllow(text); err != nil {
			return nil, err
		}
		codes = append(codes, certs.Code(text))
	}
	return codes, nil
}

// ValidateAllow returns an error for a code that --allow does not accept.
func ValidateAllow(text string) error {
	code := certs.Code(text)
	switch {
	case certs.Allowable(code):
		return nil
	case slices.Contains(certs.Codes(), code):
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --allow: this error cannot be accepted", text)),
			"run %q", "pinniped explain "+text)
	default:
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --allow: there is no such code", text)), "%s",
			codesHint(text))
	}
}

func codesHint(text string) string {
	hint := "the codes are " + strings.Join(Allowable(), ", ")
	if near := factory.Nearest(text, Allowable()); near != "" {
		hint = fmt.Sprintf("did you mean %q? %s", near, hint)
	}
	return hint
}

// ValidateEndpoint returns an error for a value that is not HOST, HOST:PORT or empty.
func ValidateEndpoint(flag, value string) error {
	if value == "" {
		return nil
	}
	if _, _, err := certs.ParseEndpoint(value); err != nil {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --%s: %s: %w", flag, certs.EndpointInvalid, err)),
			"write a DNS name or an IP address, and a port if it is not 443: proxy.example.com:8443")
	}
	return nil
}
