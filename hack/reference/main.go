// Command reference writes the catalogue of certificate checks, as `pinniped explain` has it, into the file that is its
// argument.
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
		"An error refuses the certificate, a warning does not.\n`pinniped explain CODE` prints the same.\n")
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
