package memory

import (
	"slices"
	"strings"
	"testing"
)

func TestUnchangedMappings(t *testing.T) {
	t.Parallel()
	const program = "/opt/pinniped agent"
	mapped := func(addresses, permissions, path, anonymous string) string {
		return addresses + " " + permissions + " 00000000 fe:00 4711                 " + path + "\n" +
			"Size:              28032 kB\nRss:               22548 kB\nAnonymous:             " + anonymous + " kB\n" +
			"VmFlags: rd ex mr mw me sd\n"
	}
	tests := []struct {
		name, smaps string
		want        []mapping
	}{
		{name: "finds code", smaps: mapped("1000-3000", "r-xp", program, "0"), want: []mapping{{0x1000, 0x3000}}},
		{name: "finds constants", smaps: mapped("3000-4000", "r--p", program, "0"), want: []mapping{{0x3000, 0x4000}}},
		{name: "leaves variables", smaps: mapped("4000-5000", "rw-p", program, "0")},
		{name: "leaves what was written before it became read-only", smaps: mapped("3000-4000", "r--p", program, "4")},
		{name: "leaves other files", smaps: mapped("1000-3000", "r-xp", "/lib/libc.so", "0")},
		{name: "leaves a file whose name ends in the same way", smaps: mapped("1000-3000", "r-xp", "/other"+program, "0")},
		{name: "leaves memory without a file", smaps: mapped("1000-3000", "r-xp", "", "0")},
		{
			name: "takes each for itself", want: []mapping{{0x1000, 0x3000}, {0x5000, 0x6000}},
			smaps: mapped("1000-3000", "r-xp", program, "0") + mapped("3000-4000", "r--p", program, "4") +
				mapped("4000-5000", "rw-p", program, "0") + mapped("5000-6000", "r--p", program, "0"),
		},
		{name: "leaves what it cannot read", smaps: mapped("x-y", "r-xp", program, "0") + "r-xp\n\n:\nAnonymous:\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := unchangedMappings(strings.NewReader(test.smaps), program)
			if !slices.Equal(got, test.want) {
				t.Errorf("want %v, got %v", test.want, got)
			}
		})
	}
}
