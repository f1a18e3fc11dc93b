package agent

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

// memoryFiles contain the memory limit of the container on Linux: cgroup v2, and v1.
var memoryFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// podMemory returns the memory limit of this process in bytes: that of its container, or 10/9 of GOMEMLIMIT if that is
// less. Without a limit, it is that of the default pod. Unless GOMEMLIMIT is set, it sets Go's own limit to nine
// tenths.
func podMemory() int64 {
	most := int64(math.MaxInt64)
	for _, file := range memoryFiles {
		text, err := os.ReadFile(file)
		if limit, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil && limit > 0 {
			most = limit
			break
		}
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 { // GOMEMLIMIT
		return min(most, limit/9*10)
	}
	if most > maxPodMemory {
		return flowcontrol.DefaultMemory
	}
	debug.SetMemoryLimit(most / 10 * 9)
	return most
}

// maxPodMemory is more than any limit: an unlimited cgroup has a larger number.
const maxPodMemory = 1 << 46
