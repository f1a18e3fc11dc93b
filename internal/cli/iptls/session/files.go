package session

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// maxPEM is the maximum size that is read of a file with certificates or keys. It is far above the limit of the checks,
// so that they can report the true size.
const maxPEM = 16 << 20

// ReadPEMFile reads a file with certificates or a key, which must not be empty.
func ReadPEMFile(what, path string, stdin io.Reader) ([]byte, error) {
	content, err := readPEM(what, path, stdin)
	if err == nil && len(bytes.TrimSpace(content)) == 0 {
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("%s in %s is empty", what, NameOf(path))),
			"name the PEM file that holds it")
	}
	return content, err
}

func readPEM(what, path string, stdin io.Reader) ([]byte, error) {
	return ReadFile(what, path, stdin, maxPEM)
}

// ReadFile reads a file of at most limit bytes, which may be a pipe.
func ReadFile(what, path string, stdin io.Reader, limit int64) (content []byte, err error) {
	if path == "-" {
		content, err = atomicfile.ReadStream(stdin, limit)
	} else {
		content, err = atomicfile.ReadInput(path, limit)
	}
	if err != nil {
		return nil, ui.WithFileHint(ui.Usage(fmt.Errorf("reading %s: %w", what, err)), "it")
	}
	return content, nil
}

// NameOf returns a file's name for messages: its path in quotes, or stdin.
func NameOf(path string) string {
	if path == "-" {
		return "stdin"
	}
	return fmt.Sprintf("%q", path)
}

// OneFromStdin returns an error if more than one file is stdin.
func OneFromStdin(flags map[string]string) error {
	var named []string
	for flag, path := range flags {
		if path == "-" {
			named = append(named, "--"+flag)
		}
	}
	if len(named) < 2 {
		return nil
	}
	slices.Sort(named)
	return ui.Usage(fmt.Errorf("only one of %s can be read from stdin", strings.Join(named, " and ")))
}
