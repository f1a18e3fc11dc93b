package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestSurvive renews the certificate and replaces both replicas during an attack, in a hurry. No honest request fails,
// and nothing ends that was open, until its replica is told to stop.
func TestSurvive(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	args := append(
		programFlags(t),
		"-o=json",
		"-network=loopback",
		"-objects=20",
		"-listed=5",
		"-hostile=2",
		"-patience=0.2",
		"-attackers=1",
		"-attacks=tokens",
		"-loads=survive",
		"-timeout=5m",
	)
	var out, errOut bytes.Buffer
	if code := run(args, &out, &errOut); code != exitDone {
		t.Fatalf("it ended with %d: %s", code, errOut.String())
	}
	var got report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	counted := map[string]float64{}
	for _, one := range got.Figures {
		counted[strings.TrimPrefix(one.Name, "tokens: ")] = one.Value
	}
	for _, none := range []string{
		figureFailed, figureEnded, figureSilent, figureUnavailable, figureInError,
	} {
		if n, ok := counted[none]; !ok || n != 0 {
			t.Errorf("%s: %v, measured is %t: %s", none, n, ok, errOut.String())
		}
	}
	if counted[figureRequests] == 0 || counted[figureProbes] == 0 {
		t.Errorf("nothing was asked: %v", counted)
	}
}
