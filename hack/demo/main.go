// Command demo runs the product's main scenario on a local control plane, from nothing to kubectl, with real programs.
// It prints every command before it runs it, and checks every step. At the end it cleans up; with KEEP=1 in the
// environment it keeps running until Ctrl-C.
//
// `make demo` builds the programs and runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/pinniped-toolkit/pinniped/internal/scenario"
)

// patience limits the scenario, without the builds before it. It is generous for slow or busy machines.
const patience = 5 * time.Minute

// The exit codes of the CLI.
const (
	exitDone        = 0
	exitFailed      = 1
	exitTimedOut    = 124
	exitInterrupted = 130
)

func main() { os.Exit(run(os.Stdout, os.Getenv)) }

func run(out *os.File, getenv func(string) string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &scenario.Screen{Out: out, Colour: wantsColour(out, getenv)}
	keep := getenv("KEEP") != "" && getenv("KEEP") != "0"
	err := tell(ctx, s, keep)
	switch {
	case err == nil:
		return exitDone
	case ctx.Err() != nil:
		s.Say("Interrupted.")
		return exitInterrupted
	}
	s.Failed(err)
	if errors.Is(err, context.DeadlineExceeded) {
		return exitTimedOut
	}
	return exitFailed
}

// tell runs the whole scenario, and cleans up.
func tell(ctx context.Context, s *scenario.Screen, keep bool) error {
	repository, err := findRepository()
	if err != nil {
		return err
	}
	d := newDemo(s, repository)
	for _, name := range []string{"pinniped", "pinniped-agent"} {
		if _, err := os.Stat(d.binary(name)); err != nil {
			return fmt.Errorf("looking for the programs, which `make build` builds: %w", err)
		}
	}
	dir, err := os.MkdirTemp("", "pinniped-demo-")
	if err != nil {
		return fmt.Errorf("making a directory for the demo: %w", err)
	}
	d.dir = dir
	began := time.Now()
	err = d.tell(ctx, patience)
	worked := fmt.Sprintf("All of it worked, in %.0f seconds.", time.Since(began).Seconds())
	if err == nil && keep {
		s.Done(worked)
		d.explainKeep()
		<-ctx.Done()
	}
	interrupted := ctx.Err() != nil
	err = errors.Join(err, d.stop())
	if keep || err != nil && !interrupted {
		s.Say("What the demo made, and the logs, are in " + dir + ".")
	} else {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err == nil && !keep {
		s.Done(worked + " Nothing was left behind.")
	}
	return err
}

// wantsColour follows https://no-color.org.
func wantsColour(out io.Writer, getenv func(string) string) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
