package credentialissuer

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
)

func TestPlanSigner(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	first, data, err := newSigner(nil, noon)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{Data: data}
	for _, test := range []struct {
		name   string
		secret *corev1.Secret
		now    time.Time
		want   string
		usable bool
	}{
		{"makes a missing one", nil, noon, "Missing", false},
		{"repairs a damaged one", &corev1.Secret{Data: map[string][]byte{signerCertKey: []byte("x")}}, noon, "Damaged", false},
		{"keeps a young one", secret, noon.Add(200 * day), "", true},
		{"replaces an old one, and uses it until then", secret, noon.Add(250 * day), "Expiring", true},
		{"replaces an expired one", secret, noon.Add(366 * day), "Expired", false},
	} {
		state, plan := planSigner(test.secret, test.now)
		if plan.Reason != test.want || (state != nil) != test.usable {
			t.Errorf("it %s: got %q (usable %v), want %q (usable %v)", test.name, plan.Reason, state != nil, test.want, test.usable)
		}
	}

	_, data, err = newSigner(first, noon.Add(250*day))
	if err != nil {
		t.Fatal(err)
	}
	state, plan := planSigner(&corev1.Secret{Data: data}, noon.Add(251*day))
	if plan.Needed() || string(state.previous) != string(first.ca.CertPEM()) {
		t.Errorf("the successor does not go on accepting what the first one signed: %v", plan)
	}
}

func TestNextSigner(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	known, _, err := newSigner(nil, noon)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name         string
		state, known *signerState
		reason       string
		now          time.Time
		restored     bool
		previous     *signerState
	}{
		{name: "makes the first one", reason: "Missing", now: noon},
		{name: "puts back one that was damaged", known: known, reason: reasonDamaged, now: noon.Add(day), restored: true},
		{name: "replaces a damaged one that is old, and accepts what it signed", known: known, reason: reasonDamaged, now: noon.Add(300 * day), previous: known},
		{name: "makes one without overlap when somebody deleted it", known: known, reason: "Missing", now: noon.Add(day)},
		{name: "rotates with overlap", state: known, known: known, reason: "Expiring", now: noon.Add(250 * day), previous: known},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			next, data, err := nextSigner(test.state, test.known, servingcert.Plan{Reason: test.reason}, test.now)
			if err != nil {
				t.Fatal(err)
			}
			if restored := next == known; restored != test.restored {
				t.Errorf("restored: %v, want %v", restored, test.restored)
			}
			var previous []byte
			if test.previous != nil {
				previous = test.previous.ca.CertPEM()
			}
			if string(data[signerPreviousKey]) != string(previous) {
				t.Errorf("what is accepted besides is %q", data[signerPreviousKey])
			}
			if read, plan := planSigner(&corev1.Secret{Data: data}, test.now); plan.Needed() || string(read.ca.CertPEM()) != string(next.ca.CertPEM()) {
				t.Errorf("what was written cannot be read: %v", plan)
			}
		})
	}
}
