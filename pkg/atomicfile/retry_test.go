package atomicfile

import (
	"errors"
	"testing"
	"time"
)

func TestRetry(t *testing.T) {
	t.Parallel()
	errBusy, errOther := errors.New("busy"), errors.New("other")
	for _, test := range []struct {
		name      string
		failures  int
		err, want error
		calls     int
		waited    time.Duration
	}{
		{name: "succeeds at once", calls: 1},
		{name: "succeeds when the file is free", failures: 3, err: errBusy, calls: 4, waited: 7 * time.Millisecond},
		{name: "gives up after a second", failures: 100, err: errBusy, want: errBusy, calls: 11, waited: 1023 * time.Millisecond},
		{name: "does not repeat another error", failures: 100, err: errOther, want: errOther, calls: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			calls, waited := 0, time.Duration(0)
			err := retry(func() error {
				if calls++; calls <= test.failures {
					return test.err
				}
				return nil
			}, func(err error) bool { return errors.Is(err, errBusy) }, func(d time.Duration) { waited += d })
			if !errors.Is(err, test.want) || calls != test.calls || waited != test.waited {
				t.Errorf("got %v after %d calls in %s", err, calls, waited)
			}
		})
	}
}
