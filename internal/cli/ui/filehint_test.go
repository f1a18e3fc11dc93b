package ui_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// TestFileHints checks the hint for each cause of a file error.
func TestFileHints(t *testing.T) {
	t.Parallel()
	at := func(err error) error {
		return fmt.Errorf("reading: %w", &fs.PathError{Op: "open", Path: "a b", Err: err})
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"missing":    {at(fs.ErrNotExist), "check the path"},
		"not ours":   {at(fs.ErrPermission), `"ls -l 'a b'"`},
		"too large":  {at(atomicfile.ErrTooLarge), "the right file"},
		"a folder":   {at(atomicfile.ErrNotRegular), "not a folder"},
		"other text": {errors.New("no PEM certificates found"), "name a file with certificates in PEM"},
		"with a hint": {
			ui.WithHint(at(fs.ErrNotExist), "do this"), "do this",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ui.HintOf(ui.WithFileHint(test.err, "certificates in PEM")); !strings.Contains(got, test.want) {
				t.Errorf("got %q", got)
			}
		})
	}
	if err := ui.WithFileHint(nil, "x"); err != nil {
		t.Error(err)
	}
}
