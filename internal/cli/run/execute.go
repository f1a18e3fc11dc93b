package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// Exit codes for programs that could not be run, as in shells.
const (
	exitCannotRun = 126
	exitNotFound  = 127
	exitSignalled = 128 // plus the signal number
)

// execute runs a program with our streams, and returns its exit as an error. The program stays in our process group, so
// that it gets the terminal, and stops and continues with us.
func execute(o *Options, command, environ []string, guard *watchdog) error {
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		code, hint := exitNotFound, "check that it is installed and that its directory is in PATH"
		if errors.Is(err, fs.ErrPermission) {
			code, hint = exitCannotRun, "check that it is an executable file"
		}
		return ui.WithHint(ui.WithExitCode(fmt.Errorf("running %q: %w", command[0], cause(err)), code), "%s", hint)
	}
	program := exec.Command(path, command[1:]...) //nolint:noctx // signals end it
	program.Args[0] = command[0]
	program.Stdin, program.Stdout, program.Stderr = o.In, o.Out, o.ErrOut
	program.Env = environ

	signals := catch() // before the start, to miss none
	defer signals.release()
	if err := program.Start(); err != nil {
		return ui.WithExitCode(fmt.Errorf("running %q: %w", command[0], err), exitCannotRun)
	}
	guard.guard(program.Process)
	signals.passTo(program.Process)
	err = program.Wait()
	if err == nil {
		return nil
	}
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return &ui.Ended{Code: exitCode(ended.ProcessState)}
	}
	return fmt.Errorf("running %q: %w", command[0], err)
}

// cause removes the program's name, which the error message already has.
func cause(err error) error {
	if failed, ok := errors.AsType[*exec.Error](err); ok {
		return failed.Err
	}
	return err
}
