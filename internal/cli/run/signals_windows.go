package run

import (
	"os"
	"os/signal"
)

// signals are those that reach us while a program runs. The console sends Ctrl-C and Ctrl-Break to the program itself,
// so that they are caught and not passed on.
type signals struct{ incoming chan os.Signal }

func catch() *signals {
	s := &signals{incoming: make(chan os.Signal, 1)}
	signal.Notify(s.incoming, os.Interrupt)
	return s
}

func (s *signals) passTo(*os.Process) {}

func (s *signals) release() { signal.Stop(s.incoming) }

func exitCode(state *os.ProcessState) int { return state.ExitCode() }
