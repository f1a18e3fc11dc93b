//go:build !unix

package devcluster

// The tests that run a helper process exist on Unix only.
const (
	helperDirEnv  = "DEVCLUSTER_TEST_TMPDIR"
	helperModeEnv = "DEVCLUSTER_TEST_MODE"
)

func runHelper(string, string) int { return 2 }
