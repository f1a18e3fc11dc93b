package logs

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
)

func TestSampler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var lines []string
		logger := funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, args)
		}, funcr.Options{})
		s := NewSampler("Something happened")
		check := func(when string, want int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if len(lines) != want {
				t.Fatalf("want %d lines %s, got %q", want, when, lines)
			}
		}
		for range 20 {
			s.Info(logger, "key", "value")
		}
		check("at first", SamplesPerPeriod)
		time.Sleep(SamplePeriod)
		synctest.Wait()
		check("at the end of the period", SamplesPerPeriod+1)
		if got := lines[SamplesPerPeriod]; !strings.Contains(got, `"count"=15`) {
			t.Errorf("want the number of the others, got %q", got)
		}
		for period := range 3 { // never too many in one period
			for range SamplesPerPeriod {
				s.Info(logger)
			}
			check("of each period", (period+2)*SamplesPerPeriod+1)
			time.Sleep(SamplePeriod)
			synctest.Wait()
		}
		check("in the end", 4*SamplesPerPeriod+1)
		if got := s.Total(); got != 20+3*SamplesPerPeriod {
			t.Errorf("want all counted, got %d", got)
		}
	})
}
