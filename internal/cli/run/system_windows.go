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

// watchdog is nobody here: the next run cleans up after one that was killed.
type watchdog struct{}

func startWatchdog(string) *watchdog { return nil }

func (*watchdog) guard(*os.Process) {}

func (*watchdog) stop() {}

// checkPrivate accepts every directory: on Windows it is below the user's own, whose access list others are not on.
func checkPrivate(string) error { return nil }
