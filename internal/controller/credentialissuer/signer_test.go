package credentialissuer

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
