package localuser

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestComparisonsAreInTheBackground asks the kernel for the nice value of the thread that compares, and of the one that
// waits for it. Linux returns 20 less that value.
func TestComparisonsAreInTheBackground(t *testing.T) {
	t.Parallel()
	ofThread := func() int {
		priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
		if err != nil {
			t.Error(err)
		}
		return 20 - priority
	}
	before, during, want := ofThread(), 0, errors.New("another password")
	err := inBackground(func([]byte, []byte) error {
		during = ofThread()
		return want
	})(nil, nil)
	if !errors.Is(err, want) {
		t.Errorf("want the result of the comparison, got %v", err)
	}
	if after := ofThread(); during != max(before, niceness) || after != before {
		t.Errorf("want a nice value of %d for the comparison and %d for others, got %d and %d",
			max(before, niceness), before, during, after)
	}
}
