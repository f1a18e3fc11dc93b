package run

import (
	"os"
	"os/signal"
)

// signals are the signals that reach us while a program runs. They are caught but not forwarded: the console sends
// Ctrl-C and Ctrl-Break to the program itself.
type signals struct{ incoming chan os.Signal }

func catch() *signals {
	s := &signals{incoming: make(chan os.Signal, 1)}
	signal.Notify(s.incoming, os.Interrupt)
	return s
}

func (s *signals) passTo(*os.Process) {}

func (s *signals) release() { signal.Stop(s.incoming) }

func exitCode(state *os.ProcessState) int { return state.ExitCode() }

// watchdog does nothing on Windows: the next run cleans up after a killed one.
type watchdog struct{}

func startWatchdog(string) *watchdog { return nil }

func (*watchdog) guard(*os.Process) {}

func (*watchdog) stop() {}

// checkPrivate accepts every directory: on Windows it is in the user's own, which others cannot access by default.
func checkPrivate(string) error { return nil }
