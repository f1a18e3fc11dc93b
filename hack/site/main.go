// Command site builds a static website from README.md, CONTRIBUTING.md, docs and the CLI's help. Its search needs no
// server. It fails for a broken link, and for a page that README.md does not list. With -man it writes manual pages
// instead.
//
// `make docs-site` writes bin/site with it, and `make man` bin/man.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	out := flag.String("o", "bin/site", "folder to write; it is replaced")
	man := flag.String("man", "", "folder to write manual pages into instead; it is replaced")
	flag.Parse()
	write := func() error { return run(*root, *out) }
	if *man != "" {
		write = func() error { return writeManPages(*man) }
	}
	if err := write(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	s, err := load(root)
	if err != nil {
		return err
	}
	menu, err := s.menu()
	if err := errors.Join(err, s.link()); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	return s.write(out, menu)
}
