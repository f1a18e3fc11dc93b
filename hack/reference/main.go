// Command reference writes the certificate checks, as `pinniped explain` prints them, to the file in its argument.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func main() {
	if len(os.Args) != 2 {
		fail("usage: reference FILE")
	}
	if err := os.WriteFile(os.Args[1], checks(), 0o644); err != nil {
		fail(err)
	}
}

func fail(err any) {
	_, _ = fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

func checks() []byte {
	var text strings.Builder
	text.WriteString("# Certificate checks\n\n`pinniped ip-tls set` and the agent make these checks.\n" +
		"An error blocks the certificate; a warning does not.\n`pinniped explain CODE` prints the same.\n")
	for _, code := range certs.Codes() {
		explanation, ok := certs.Explain(code)
		if !ok {
			continue
		}
		for _, paragraph := range []string{
			"## " + string(code), fmt.Sprintf("**%s**: %s", explanation.Severity, explanation.Cause),
			"**Consequence**: " + explanation.Consequence, "**Fix**: " + explanation.Fix,
		} {
			text.WriteString("\n" + lines(paragraph))
		}
		if explanation.Example != "" {
			fmt.Fprintf(&text, "\n```shell\n%s\n```\n", strings.TrimSpace(explanation.Example))
		}
	}
	return []byte(text.String())
}

// lines returns a paragraph with one sentence per line, in lines of at most 120 columns.
func lines(paragraph string) string {
	var text strings.Builder
	width := 0
	for _, word := range strings.Fields(strings.ReplaceAll(paragraph, ". ", ".\x00 ")) {
		word, ends := strings.CutSuffix(word, "\x00")
		if width > 0 && width+1+len(word) > 120 {
			text.WriteString("\n")
			width = 0
		}
		if width > 0 {
			text.WriteString(" ")
			width++
		}
		text.WriteString(word)
		if width += len(word); ends {
			text.WriteString("\n")
			width = 0
		}
	}
	return text.String() + "\n"
}
