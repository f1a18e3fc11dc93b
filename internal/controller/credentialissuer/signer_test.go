package credentialissuer

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func inspectSigner(secret *corev1.Secret, now time.Time) *issuedcert.State {
	return issuedcert.Inspect(signerPolicy(), secret, now)
}

// newSigner returns the first signer CA of a cluster.
func newSigner(t *testing.T, now time.Time) *issuedcert.State {
	t.Helper()
	missing := inspectSigner(nil, now)
	return must.Get(missing.Repair(missing.Verdict(), nil))(t)
}

func TestSignerIsReplaced(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	known := newSigner(t, noon)
	damaged := &corev1.Secret{Data: map[string][]byte{signerCertKey: []byte("x"), signerKeyKey: []byte("x")}}
	keyLost := &corev1.Secret{Data: map[string][]byte{signerCertKey: known.CA.CertPEM()}}
	good := &corev1.Secret{Data: known.Data()}
	if verdict := inspectSigner(good, noon.Add(200*day)).Verdict(); verdict != nil {
		t.Errorf("it does not keep a young one: %v", verdict)
	}
	for _, test := range []struct {
		name     string
		secret   *corev1.Secret
		known    *issuedcert.State
		reason   issuedcert.Reason
		now      time.Time
		restored bool
		previous *issuedcert.State
		usable   bool // until then
	}{
		{name: "makes the first one", reason: "Missing", now: noon},
		{
			name: "puts back one that was damaged", secret: damaged, known: known, reason: "Damaged", now: noon.Add(day),
			restored: true,
		},
		{
			name: "replaces a damaged one that is old, and accepts what it signed", secret: damaged, known: known,
			reason: "Damaged", now: noon.Add(300 * day), previous: known,
		},
		{name: "replaces a damaged one that nobody knows", secret: damaged, reason: "Damaged", now: noon.Add(day)},
		{name: "does not accept a CA whose key is lost", secret: keyLost, reason: "Damaged", now: noon.Add(day)},
		{name: "makes one without overlap when somebody deleted it", known: known, reason: "Missing", now: noon.Add(day)},
		{
			name: "rotates with overlap", secret: good, known: known, reason: "Expiring", now: noon.Add(250 * day),
			previous: known, usable: true,
		},
		{
			name: "replaces one that is not valid yet, and accepts it later", secret: good, known: known,
			reason: "NotYetValid", now: noon.Add(-730 * day), previous: known,
		},
		{name: "does not accept one that expired", secret: good, known: known, reason: "Expired", now: noon.Add(366 * day)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			state := inspectSigner(test.secret, test.now)
			verdict := state.Verdict()
			if usable := verdict.Only(issuedcert.Expiring); verdict.Reason != test.reason || usable != test.usable {
				t.Fatalf("the reason is %q, and it is usable: %v", verdict.Reason, usable)
			}
			next := must.Get(state.Repair(verdict, test.known))(t)
			if restored := next.SameCA(known); restored != test.restored {
				t.Errorf("restored: %v, want %v", restored, test.restored)
			}
			var previous []byte
			if test.previous != nil {
				previous = test.previous.CA.CertPEM()
			}
			if string(next.Data()[signerPreviousKey]) != string(previous) {
				t.Errorf("what is accepted besides is %q", next.Data()[signerPreviousKey])
			}
			read := inspectSigner(&corev1.Secret{Data: next.Data()}, test.now.Add(day))
			if read.Verdict() != nil || !read.SameCA(next) || string(read.PreviousBundle()) != string(previous) {
				t.Errorf("what was written cannot be read: %v", read.Verdict())
			}
		})
	}
}

// TestChooseSigner tests a rotation: the previous CA signs for another minute, and is accepted until it expires.
func TestChooseSigner(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	first := newSigner(t, noon)
	rotated := noon.Add(250 * day)
	old := inspectSigner(&corev1.Secret{Data: first.Data()}, rotated)
	second := must.Get(old.Repair(old.Verdict(), first))(t)
	unrelated := newSigner(t, noon).CA
	for _, test := range []struct {
		name    string
		signing *certs.CA
		at      time.Time
		want    *issuedcert.State
		accepts []*issuedcert.State
	}{
		{"signs with the CA of the Secret when it starts", nil, rotated, second, []*issuedcert.State{first}},
		{
			"goes on with the previous one for a moment", first.CA, rotated.Add(30 * time.Second), first,
			[]*issuedcert.State{second, first},
		},
		{"then uses the new one", first.CA, rotated.Add(2 * time.Minute), second, []*issuedcert.State{first}},
		{"leaves a CA at once that the Secret does not know", unrelated, rotated, second, []*issuedcert.State{first}},
		{"forgets a CA that expired", second.CA, noon.Add(366 * day), second, nil},
	} {
		state := inspectSigner(&corev1.Secret{Data: second.Data()}, test.at)
		use, accepted := chooseSigner(state, test.signing, test.at)
		var want []byte
		for _, other := range test.accepts {
			want = append(want, other.CA.CertPEM()...)
		}
		if string(use.CertPEM()) != string(test.want.CA.CertPEM()) || string(accepted) != string(want) {
			t.Errorf("it %s: it signs with\n%sand accepts\n%s", test.name, use.CertPEM(), accepted)
		}
	}
}
