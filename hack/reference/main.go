// Command reference writes the CLI's reference documents into the folder that is its argument, from the commands' own
// help: Markdown, or manual pages with -man.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1:
		err = write(args[0])
	case len(args) == 2 && args[0] == "-man":
		err = writeManPages(args[1])
	default:
		err = fmt.Errorf("usage: reference [-man] FOLDER")
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	_, _ = fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

func emptied(folder string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	return os.MkdirAll(folder, 0o755)
}

func writeManPages(folder string) error {
	if err := emptied(folder); err != nil {
		return err
	}
	return writeMan(folder, tree())
}

// tree is the tree of commands.
func tree() *cobra.Command {
	// Nothing of the machine that generates may show in the documents.
	f := factory.New(nil)
	f.Getenv = func(string) string { return "" }
	f.LookupEnv = func(string) (string, bool) { return "", false }
	f.HomeDir = func() (string, error) { return "~", nil }
	return cli.New(f)
}

func write(folder string) error {
	if err := emptied(folder); err != nil {
		return err
	}
	authenticators := filepath.Join(folder, "../authenticators.md")
	if err := writeFields(authenticators, "deploy/crds", "JWTAuthenticator", "WebhookAuthenticator"); err != nil {
		return err
	}
	if err := writeCommand(folder, tree()); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "checks.md"), checks(), 0o644); err != nil {
		return err
	}
	if err := writeExitCodes(filepath.Join(folder, "../exit-codes.md")); err != nil {
		return err
	}
	config, err := agentSchema()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "../agent.schema.json"), config, 0o644); err != nil {
		return err
	}
	schema, page, err := outputDocs()
	if err != nil {
		return fmt.Errorf("describing the output for programs: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "../output.schema.json"), schema, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "../output.md"), page, 0o644)
}

func writeCommand(folder string, command *cobra.Command) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n\n%s\n", command.CommandPath(), command.Short)
	if command.Long != "" {
		fmt.Fprintf(&text, "\n%s\n", command.Long)
	}
	if command.Runnable() {
		fmt.Fprintf(&text, "\n    %s\n", command.UseLine())
	}
	if command.Example != "" {
		fmt.Fprintf(&text, "\n## Examples\n\n```shell\n%s\n```\n", strings.Trim(command.Example, "\n"))
	}
	if flags := command.NonInheritedFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(&text, "\n## Flags\n\n```\n%s```\n", flags)
	}
	if flags := command.InheritedFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(&text, "\n## Flags of every command\n\n```\n%s```\n", flags)
	}
	var below []*cobra.Command
	for _, child := range command.Commands() {
		if !child.Hidden && child.Name() != "help" && command.Name() != "completion" {
			below = append(below, child)
		}
	}
	if len(below) > 0 {
		text.WriteString("\n## Commands\n\n")
		for _, child := range below {
			fmt.Fprintf(&text, "- [%s](%s): %s\n", child.CommandPath(), file(child), child.Short)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, file(command)), []byte(text.String()), 0o644); err != nil {
		return err
	}
	for _, child := range below {
		if err := writeCommand(folder, child); err != nil {
			return err
		}
	}
	return nil
}

func file(command *cobra.Command) string {
	return strings.ReplaceAll(command.CommandPath(), " ", "_") + ".md"
}

// checks is the catalogue of certificate checks, as `pinniped explain` tells it.
func checks() []byte {
	var text strings.Builder
	text.WriteString("# Certificate checks\n\nWhat `pinniped ip-tls set` and the agent look at. " +
		"An error refuses the certificate, a warning does not. `pinniped explain CODE` says the same.\n")
	for _, code := range certs.Codes() {
		explanation, ok := certs.Explain(code)
		if !ok {
			continue
		}
		fmt.Fprintf(&text, "\n## %s\n\n%s. %s\n\nWhat follows: %s\n\nWhat to do: %s\n",
			code, explanation.Severity, explanation.Cause, explanation.Consequence, explanation.Fix)
		if explanation.Example != "" {
			fmt.Fprintf(&text, "\n```shell\n%s\n```\n", strings.TrimSpace(explanation.Example))
		}
	}
	return []byte(text.String())
}
