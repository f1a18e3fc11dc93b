package agent

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

// memoryFiles are where Linux says how much memory the container may use: cgroup v2, and v1.
var memoryFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// podMemory returns how many bytes of memory this process may use: the limit of its container, or what GOMEMLIMIT in
// the environment says when that is less. Where there is no limit, it is that of a pod as it is shipped. Unless the
// environment says otherwise, Go keeps to nine tenths of it.
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

// maxPodMemory is more than any limit: a cgroup without one says a number like this.
const maxPodMemory = 1 << 46
