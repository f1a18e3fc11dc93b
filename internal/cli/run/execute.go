package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// Exit codes of programs that could not be run, as shells have them.
const (
	exitCannotRun = 126
	exitNotFound  = 127
	exitSignalled = 128 // and the number of the signal
)

// execute runs a program with our streams, and returns nil or how it ended. The program stays in our process group, so
// that it is in the foreground of the terminal when we are, and stops and continues together with us.
func execute(o *Options, command, environ []string, guard *watchdog) error {
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		code, hint := exitNotFound, "is it installed, and its directory in PATH?"
		if errors.Is(err, fs.ErrPermission) {
			code, hint = exitCannotRun, "is it an executable file?"
		}
		return ui.WithHint(ui.WithExitCode(fmt.Errorf("running %q: %w", command[0], cause(err)), code), "%s", hint)
	}
	program := exec.Command(path, command[1:]...) //nolint:noctx // it is the user's, and ends by signals
	program.Args[0] = command[0]
	program.Stdin, program.Stdout, program.Stderr = o.In, o.Out, o.ErrOut
	program.Env = environ

	signals := catch() // before the start, so that none is lost
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

// cause drops the name, which the error says already.
func cause(err error) error {
	if failed, ok := errors.AsType[*exec.Error](err); ok {
		return failed.Err
	}
	return err
}
