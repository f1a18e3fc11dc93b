package memory

import (
	"os"
	"syscall"
)

// unmapProgram drops the pages of the program's file from this process's memory. Three quarters of them are only needed
// at the start. They stay in the page cache, from which the kernel maps those that are needed again. On an error, they
// stay mapped.
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
