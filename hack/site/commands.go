package main

import (
	"bytes"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// commandsFolder is the path of the commands' pages in the site.
const commandsFolder = "docs/reference/cli"

// commandTree returns the CLI's command tree, independent of this machine's settings.
func commandTree() *cobra.Command {
	f := factory.New(nil)
	f.Getenv = func(string) string { return "" }
	f.LookupEnv = func(string) (string, bool) { return "", false }
	f.HomeDir = func() (string, error) { return "~", nil }
	root := cli.New(f)
	root.DisableAutoGenTag = true
	return root
}

var deepHeading = regexp.MustCompile(`(?m)^#(#+ )`)

// commandPages returns the Markdown pages of all commands, by path.
func commandPages() (map[string][]byte, error) {
	pages := map[string][]byte{}
	var add func(*cobra.Command) error
	add = func(command *cobra.Command) error {
		command.InitDefaultHelpFlag()
		var page bytes.Buffer
		if err := doc.GenMarkdownCustom(command, &page, func(link string) string { return link }); err != nil {
			return err
		}
		name := path.Join(commandsFolder, strings.ReplaceAll(command.CommandPath(), " ", "_")+".md")
		pages[name] = deepHeading.ReplaceAll(page.Bytes(), []byte("$1")) // cobra begins at level 2
		for _, child := range command.Commands() {
			if !child.IsAvailableCommand() || child.IsAdditionalHelpTopicCommand() {
				continue
			}
			if err := add(child); err != nil {
				return err
			}
		}
		return nil
	}
	return pages, add(commandTree())
}

// writeManPages writes the manual pages of all commands to a directory. Their date is $SOURCE_DATE_EPOCH, or today.
func writeManPages(folder string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return doc.GenManTree(
		commandTree(),
		&doc.GenManHeader{Section: "1", Source: "pinniped", Manual: "User Commands"},
		folder,
	)
}
