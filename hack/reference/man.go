package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// writeMan writes the manual page of a command, and of the commands below it.
func writeMan(folder string, command *cobra.Command) error {
	if err := os.WriteFile(filepath.Join(folder, manName(command)+".1"), []byte(manPage(command)), 0o644); err != nil {
		return err
	}
	for _, child := range command.Commands() {
		if child.Hidden || child.Name() == "help" || command.Name() == "completion" {
			continue
		}
		if err := writeMan(folder, child); err != nil {
			return err
		}
	}
	return nil
}

func manName(command *cobra.Command) string {
	return strings.ReplaceAll(command.CommandPath(), " ", "-")
}

// manPage is a page in the man macros. It has no date, so that it is the same whenever it is made.
func manPage(command *cobra.Command) string {
	var page strings.Builder
	section := func(title string) { fmt.Fprintf(&page, ".SH %s\n", title) }
	verbatim := func(text string) { fmt.Fprintf(&page, ".nf\n%s\n.fi\n", roff(strings.Trim(text, "\n"))) }

	fmt.Fprintf(&page, ".TH %s 1 \"\" pinniped \"User Commands\"\n", strings.ToUpper(manName(command)))
	section("NAME")
	fmt.Fprintf(&page, "%s \\- %s\n", roff(manName(command)), roff(command.Short))
	section("SYNOPSIS")
	fmt.Fprintf(&page, ".B %s\n", roff(command.UseLine()))
	section("DESCRIPTION")
	text := command.Long
	if text == "" {
		text = command.Short + "."
	}
	for _, paragraph := range strings.Split(text, "\n\n") {
		page.WriteString(".PP\n")
		if strings.HasPrefix(paragraph, "  ") {
			verbatim(paragraph)
			continue
		}
		fmt.Fprintf(&page, "%s\n", roff(paragraph))
	}
	if flags := command.NonInheritedFlags().FlagUsages(); flags != "" {
		section("OPTIONS")
		verbatim(flags)
	}
	if flags := command.InheritedFlags().FlagUsages(); flags != "" {
		section("OPTIONS OF EVERY COMMAND")
		verbatim(flags)
	}
	if command.Example != "" {
		section("EXAMPLES")
		verbatim(command.Example)
	}
	var also []string
	if command.HasParent() {
		also = append(also, manName(command.Parent()))
	}
	for _, child := range command.Commands() {
		if !child.Hidden && child.Name() != "help" && command.Name() != "completion" {
			also = append(also, manName(child))
		}
	}
	section("SEE ALSO")
	for i, name := range also {
		separator := ","
		if i == len(also)-1 {
			separator = ""
		}
		fmt.Fprintf(&page, ".BR %s (1)%s\n", roff(name), separator)
	}
	return page.String()
}

// roff escapes text: backslashes, hyphens, and lines that would be taken for requests.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
