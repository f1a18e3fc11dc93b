package session

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// ReadPEMFile is readFile for a file that must not be empty.
func ReadPEMFile(what, path string, stdin io.Reader, limit int) ([]byte, error) {
	content, err := ReadFile(what, path, stdin, limit)
	if err == nil && len(bytes.TrimSpace(content)) == 0 {
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("%s in %s is empty", what, NameOf(path))), "give the file that holds it, in PEM")
	}
	return content, err
}

// ReadFile reads one byte more than what the checks take, so that they can say that it is too much.
func ReadFile(what, path string, stdin io.Reader, limit int) ([]byte, error) {
	source := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, ui.Usage(fmt.Errorf("reading %s: %w", what, err))
		}
		defer file.Close() //nolint:errcheck // only read
		source = file
	}
	content, err := io.ReadAll(io.LimitReader(source, int64(limit)+1))
	if err != nil {
		return nil, ui.Usage(fmt.Errorf("reading %s: %w", what, err))
	}
	return content, nil
}

// NameOf names a file in an error: its path in quotes, or stdin.
func NameOf(path string) string {
	if path == "-" {
		return "stdin"
	}
	return fmt.Sprintf("%q", path)
}

// OneFromStdin refuses that several of the files are read from stdin.
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
