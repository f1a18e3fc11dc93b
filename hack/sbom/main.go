// Command sbom writes the SPDX document of a Go program: sbom -version V PROGRAM FILE
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/pinniped-toolkit/pinniped/hack/sbom/spdx"
)

func main() {
	version := flag.String("version", "", "version of the program; without it that of its main module")
	flag.Parse()
	if err := run(flag.Args(), *version); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string, version string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("2 arguments wanted, PROGRAM and FILE, got %d", len(arguments))
	}
	program, err := spdx.Read(arguments[0], version)
	if err != nil {
		return err
	}
	document, err := program.Document()
	if err != nil {
		return err
	}
	return os.WriteFile(arguments[1], document, 0o644)
}
