package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// writeExitCodes replaces the table in a page about exit codes; the text around it is written by hand.
func writeExitCodes(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var table strings.Builder
	table.WriteString("| code | meaning | example |\n|---|---|---|\n")
	for _, one := range ui.ExitCodes() {
		fmt.Fprintf(&table, "| %d | %s | %s |\n", one.Code, one.Meaning, one.Example)
	}
	begin := bytes.Index(page, []byte("| code |"))
	end := bytes.LastIndex(page, []byte("|\n"))
	if begin < 0 || end < begin {
		return fmt.Errorf("%s has no table", path)
	}
	return os.WriteFile(path, append(append(page[:begin:begin], table.String()...), page[end+2:]...), 0o644)
}
