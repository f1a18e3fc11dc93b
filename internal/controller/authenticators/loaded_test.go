package authenticators

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestLoaded(t *testing.T) {
	t.Parallel()
	loaded := func(f *fixture) string {
		if err := f.Loaded(t.Context()); err != nil {
			return err.Error()
		}
		return ""
	}
	t.Run("when each has been evaluated, good or not", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		delete(f.configMaps.objects, "ns/b")
		for _, name := range []string{"a", "b"} {
			if got, want := loaded(f), `WebhookAuthenticator "`+name+`" has not been checked yet`; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			must.Do(t, f.run(t, name))
		}
		if got := loaded(f); got != "" || f.phase(t, "b") != "Error" {
			t.Errorf("got %q, and the phase of the second %s", got, f.phase(t, "b"))
		}
	})
	t.Run("in any case, when one has not been evaluated for long", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		clock := clocktesting.NewFakeClock(testNow)
		f.Clock = clock
		if got := loaded(f); got == "" {
			t.Error("it does not wait")
		}
		clock.Step(loadPatience - time.Nanosecond)
		if got := loaded(f); got == "" {
			t.Error("it gives up early")
		}
		clock.Step(time.Nanosecond)
		if got := loaded(f); got != "" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("for ever after", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		for _, name := range []string{"a", "b"} {
			must.Do(t, f.run(t, name))
		}
		if got := loaded(f); got != "" {
			t.Errorf("got %q", got)
		}
		f.verdicts = nil
		if got := loaded(f); got != "" {
			t.Errorf("got %q", got)
		}
	})
}
