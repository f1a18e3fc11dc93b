package devcluster

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// guard ends the programs of a cluster when this process ends without having done so, in any way.
//
// It is a shell, in its own process group, that reads a pipe whose other end only this process has. The kernel closes
// that end when the process dies, even by kill -9; the shell then reads the end of the file, kills the registered
// process groups, and removes the cluster's temporary directory.
type guard struct {
	shell *exec.Cmd
	pipe  *os.File
}

// guardScript reads lines "add GROUP", "remove GROUP" and "dismiss". $1 is a directory to remove, or empty.
const guardScript = `
trap '' HUP INT TERM
groups=
while read -r verb group; do
	case $verb in
	add) groups="$groups $group" ;;
	remove)
		kept=
		for g in $groups; do [ "$g" = "$group" ] || kept="$kept $g"; done
		groups=$kept
		;;
	dismiss) exit 0 ;;
	esac
done
for g in $groups; do kill -9 "-$g"; done
[ -n "$1" ] || exit 0
for attempt in 1 2 3 4 5 6 7 8 9 10; do
	rm -rf "$1" && exit 0
	sleep 1
done
`

// newGuard starts a guard. temporary is the directory that it removes, or empty for none.
func newGuard(temporary string) (*guard, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting the guard process: %w", err)
	}
	defer reader.Close() //nolint:errcheck // the shell has its own copy
	//nolint:noctx // the guard must outlive every context
	shell := exec.Command("/bin/sh", "-c", guardScript, "devcluster-guard", temporary)
	shell.Stdin = reader
	shell.Dir = "/"
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := shell.Start(); err != nil {
		_ = writer.Close()
		return nil, fmt.Errorf("starting the guard process: %w", err)
	}
	return &guard{shell: shell, pipe: writer}, nil
}

// add registers a started program.
func (g *guard) add(process *os.Process) error {
	if _, err := fmt.Fprintf(g.pipe, "add %d\n", process.Pid); err != nil {
		return fmt.Errorf("telling the guard process: %w", err)
	}
	return nil
}

// remove unregisters a program that has ended, because the system may reuse its process ID.
func (g *guard) remove(process *os.Process) {
	// An error means that the guard has ended.
	_, _ = fmt.Fprintf(g.pipe, "remove %d\n", process.Pid)
}

// dismiss ends the guard without any effect.
func (g *guard) dismiss() {
	_, _ = fmt.Fprintln(g.pipe, "dismiss")
	_ = g.pipe.Close()
	_ = g.shell.Wait()
}
