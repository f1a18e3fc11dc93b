package memory

import (
	"os"
	"syscall"
)

// unmapProgram takes the pages of the program's own file out of this process's memory. Three quarters of them were needed
// at the start only. They stay in the system's page cache, from where those that are needed again come back by themselves.
// When anything fails, they stay as they are.
func unmapProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close() //nolint:errcheck // it was only read
	for _, m := range unchangedMappings(smaps, program) {
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, m.from, m.to-m.from, syscall.MADV_DONTNEED)
	}
}
