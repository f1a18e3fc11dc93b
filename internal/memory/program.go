package memory

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// mapping is an address range.
type mapping struct{ from, to uintptr }

// unchangedMappings returns the mappings of the program's file whose pages are all the same as in the file. It parses
// /proc/PID/smaps. It omits writable mappings, and those that were written before they became read-only.
func unchangedMappings(smaps io.Reader, program string) []mapping {
	var found []mapping
	var now *mapping
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == "Anonymous:":
			if now != nil && len(fields) > 1 && fields[1] == "0" {
				found = append(found, *now)
			}
			now = nil
		case !strings.HasSuffix(fields[0], ":"):
			now = nil
			if len(fields) > 5 && strings.HasSuffix(line, " "+program) && (fields[1] == "r-xp" || fields[1] == "r--p") {
				now = parseMapping(fields[0])
			}
		}
	}
	return found
}

// parseMapping returns nil when it cannot parse the addresses.
func parseMapping(addresses string) *mapping {
	first, last, _ := strings.Cut(addresses, "-")
	from, err1 := strconv.ParseUint(first, 16, 64)
	to, err2 := strconv.ParseUint(last, 16, 64)
	if err1 != nil || err2 != nil || to <= from {
		return nil
	}
	return &mapping{uintptr(from), uintptr(to)}
}
