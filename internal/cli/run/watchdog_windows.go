package run

import "os"

// watchdog is nobody here: the next run cleans up after one that was killed.
type watchdog struct{}

func startWatchdog(string) *watchdog { return nil }

func (*watchdog) guard(*os.Process) {}

func (*watchdog) stop() {}
