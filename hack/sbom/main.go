// Command sbom writes the SPDX document of a Go program: sbom -version V PROGRAM FILE
// With -licenses it writes the licenses of all that is linked into the CLI on some systems: sbom -licenses FILE GOOS...
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/hack/sbom/license"
	"github.com/pinniped-toolkit/pinniped/hack/sbom/spdx"
)

func main() {
	version := flag.String("version", "", "version of the program; without it that of its main module")
	licenses := flag.String("licenses", "", "file for the licenses of what the CLI is made of")
	flag.Parse()
	var err error
	if *licenses != "" {
		err = writeLicenses(context.Background(), *licenses, flag.Args())
	} else {
		err = run(flag.Args(), *version)
	}
	if err != nil {
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

const separator = "\n--------------------------------------------------------------------------------\n"

// writeLicenses fails for a module without a license text, and for one whose license is not known here.
func writeLicenses(ctx context.Context, file string, systems []string) error {
	modules, err := linked(ctx, systems)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString(
		"pinniped is licensed under Apache-2.0. It is made of Go's standard library and of the modules below.\n",
	)
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("finding Go: %w", err)
	}
	library, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "LICENSE"))
	if err != nil {
		return fmt.Errorf("reading Go's license: %w", err)
	}
	fmt.Fprintf(&out, "%sGo's standard library: BSD-3-Clause\n\n%s", separator, library)
	var problems []error
	for _, m := range modules {
		found, err := license.Of(license.Cache(), m)
		if err != nil {
			return err
		}
		if found.ID == license.Unknown {
			problems = append(problems, fmt.Errorf("the license of %s is not known", found.Module))
		}
		fmt.Fprintf(&out, "%s%s: %s\n", separator, found.Module, found.ID)
		for _, text := range found.Texts {
			fmt.Fprintf(&out, "\n%s:\n\n%s", text.Name, text.Content)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}

// linked returns the modules that the CLI is made of, on any of the systems.
func linked(ctx context.Context, systems []string) ([]*debug.Module, error) {
	var lines []string
	for _, system := range systems {
		list := exec.CommandContext(ctx, "go", "list", "-deps",
			"-f={{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/pinniped")
		list.Env, list.Stderr = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0"), os.Stderr
		printed, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("listing the modules for %s: %w", system, err)
		}
		lines = append(lines, strings.Split(strings.TrimSpace(string(printed)), "\n")...)
	}
	slices.Sort(lines)
	var modules []*debug.Module
	for _, line := range slices.Compact(lines) {
		path, version, ok := strings.Cut(line, " ")
		if ok {
			modules = append(modules, &debug.Module{Path: path, Version: version})
		}
	}
	if len(modules) == 0 {
		return nil, errors.New("no modules found for the systems that were named")
	}
	return modules, nil
}
