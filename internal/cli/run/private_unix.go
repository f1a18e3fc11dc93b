//go:build unix

package run

import (
	"fmt"
	"os"
	"syscall"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// checkPrivate rejects a directory that other users own or may write to: they could read credentials, or replace the
// kubeconfig by one that runs their program.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		err = fmt.Errorf("%q is not a directory", dir)
	case ok && int(owner.Uid) != os.Geteuid():
		err = fmt.Errorf("%q belongs to user %d", dir, owner.Uid)
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("%q is accessible by others (mode %#o)", dir, info.Mode().Perm())
	default:
		return nil
	}
	word := ui.ShellWord(dir)
	return ui.WithHint(err, "run \"rm -r %s\", or if the folder is yours, \"chmod 700 %s\"", word, word)
}
