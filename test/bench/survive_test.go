package main

import (
	"strings"
	"testing"
)

// TestSurvive renews the certificate and replaces both replicas during an attack, in a hurry. No honest request fails,
// and nothing ends that was open, until its replica is told to stop.
func TestSurvive(t *testing.T) {
	t.Parallel()
	got, said := reportOf(t,
		"-network=loopback",
		"-objects=20",
		"-listed=5",
		"-hostile=2",
		"-patience=0.2",
		"-attackers=1",
		"-attacks=tokens",
		"-loads=survive",
	)
	counted := map[string]float64{}
	for _, one := range got.Figures {
		counted[strings.TrimPrefix(one.Name, "tokens: ")] = one.Value
	}
	for _, none := range []string{
		figureFailed, figureEnded, figureSilent, figureUnavailable, figureInError,
	} {
		if n, ok := counted[none]; !ok || n != 0 {
			t.Errorf("%s: %v, measured is %t: %s", none, n, ok, said)
		}
	}
	if counted[figureRequests] == 0 || counted[figureProbes] == 0 {
		t.Errorf("nothing was asked: %v", counted)
	}
}
