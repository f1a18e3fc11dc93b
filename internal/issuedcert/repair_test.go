package issuedcert

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const year = 365 * day

// lasting is the policy of a CA that clients trust.
func lasting(restoreDeleted bool) Policy {
	return Policy{Name: "CA", CA: &CAPolicy{
		CommonName: caName, Life: 10 * year, Keys: Keys{keyCACertificate, keyCAKey}, RestoreDeleted: restoreDeleted,
	}}
}

func make1(t *testing.T, policy Policy, now time.Time) *State {
	t.Helper()
	missing := Inspect(policy, nil, now)
	return must.Get(missing.Repair(missing.Verdict(), nil))(t)
}

func TestRestore(t *testing.T) {
	t.Parallel()
	seen, other := make1(t, lasting(true), testNow), make1(t, lasting(true), testNow.Add(-9*year-300*day))
	damaged := &corev1.Secret{Data: map[string][]byte{keyCACertificate: []byte("x")}}
	for _, test := range []struct {
		name           string
		restoreDeleted bool
		secret         *corev1.Secret
		seen           *State
		after          time.Duration
		reason         Reason
		restored       bool
	}{
		{name: "puts a damaged CA back", secret: damaged, seen: seen, reason: Damaged, restored: true},
		{name: "puts a deleted CA back", restoreDeleted: true, seen: seen, reason: Missing, restored: true},
		{name: "does not put it back where deleting asks for a new one", seen: seen, reason: Missing},
		{
			name: "puts a CA back in place of one that expired", secret: &corev1.Secret{Data: other.Data()}, seen: seen,
			after: year, reason: Expired, restored: true,
		},
		{
			name: "makes a new one when the one that was seen expired too", secret: &corev1.Secret{Data: other.Data()},
			seen: other, after: year, reason: Expired,
		},
		{name: "makes a new one when none was seen", secret: damaged, reason: Damaged},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			state := Inspect(lasting(test.restoreDeleted), test.secret, testNow.Add(test.after))
			verdict := state.Verdict()
			if verdict == nil || verdict.Reason != test.reason || verdict.Part != PartCA {
				t.Fatalf("the verdict is %+v", verdict)
			}
			if restored := state.Restore(verdict, test.seen); (restored != nil) != test.restored ||
				test.restored && !restored.SameCA(test.seen) {
				t.Errorf("it restored %+v", restored)
			}
			repaired := must.Get(state.Repair(verdict, test.seen))(t)
			if repaired.Verdict() != nil || repaired.SameCA(test.seen) != test.restored {
				t.Errorf("the same CA: %v, and the verdict about it is %+v", repaired.SameCA(test.seen), repaired.Verdict())
			}
		})
	}
}

// TestForeignCA shows that a certificate whose CA is in another Secret is reissued by that CA only, and that a policy
// that the CA cannot satisfy is an error.
func TestForeignCA(t *testing.T) {
	t.Parallel()
	ca, err := certs.NewCA("elsewhere", testNow.Add(-2*day), day)
	if err != nil {
		t.Fatal(err)
	}
	policy := Policy{Name: "certificate", Certificate: &CertificatePolicy{
		Names: certs.SANs{DNSNames: testNames}, Life: testLife, Keys: Keys{keyCertificate, keyPrivateKey},
	}}
	missing := InspectUnder(ca, policy, nil, testNow)
	if verdict := missing.Verdict(); verdict.Reason != Missing || verdict.Part != PartCertificate {
		t.Fatalf("the verdict is %+v", verdict)
	}
	if next, err := missing.Repair(missing.Verdict(), nil); err == nil || next != nil ||
		!strings.HasPrefix(err.Error(), "issuing the certificate: ") {
		t.Errorf("a CA that expired issued %+v, %v", next, err)
	}
	inTime := InspectUnder(ca, policy, nil, testNow.Add(-36*time.Hour))
	made, err := inTime.Repair(inTime.Verdict(), nil)
	if err != nil || made.Verdict() != nil {
		t.Fatalf("%+v, %v", made, err)
	}
	// It expires with its CA, so renewing it gains nothing.
	late := InspectUnder(ca, policy, &corev1.Secret{Data: made.Data()}, testNow.Add(-25*time.Hour))
	if late.Verdict() != nil || !late.Due().After(testNow.Add(-25*time.Hour)) {
		t.Errorf("the verdict is %+v, and it is looked at again at %s", late.Verdict(), late.Due())
	}
}

// TestCAOfTheFuture has a CA that clients trust and that is not valid yet: the clock that issued it was two years
// ahead, or the agent's is two years behind.
func TestCAOfTheFuture(t *testing.T) {
	t.Parallel()
	made := make1(t, lasting(true), testNow)
	at := func(when time.Time) *metav1.Time { return &metav1.Time{Time: when} }
	for _, test := range []struct {
		name             string
		created, written time.Time
		replaced         bool
	}{
		{name: "replaces what was made under a clock of the future", created: testNow.Add(-2 * year), replaced: true},
		{
			name: "replaces it in an older Secret", created: testNow.Add(-3 * year), written: testNow.Add(-2 * year),
			replaced: true,
		},
		{name: "keeps what is as old as its Secret: our clock is late", created: testNow},
		{name: "keeps it in an older Secret", created: testNow.Add(-3 * year), written: testNow},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			secret := &corev1.Secret{Data: made.Data(), ObjectMeta: metav1.ObjectMeta{CreationTimestamp: *at(test.created)}}
			if !test.written.IsZero() {
				secret.ManagedFields = []metav1.ManagedFieldsEntry{{Time: at(test.created)}, {Time: at(test.written)}}
			}
			now := testNow.Add(-2 * year)
			state := Inspect(lasting(true), secret, now)
			verdict := state.Verdict()
			if !test.replaced {
				if verdict != nil {
					t.Errorf("the verdict is %+v", verdict)
				}
				return
			}
			if verdict == nil || verdict.Reason != NotYetValid || verdict.Part != PartCA {
				t.Fatalf("the verdict is %+v", verdict)
			}
			repaired := must.Get(state.Repair(verdict, made))(t)
			if repaired.SameCA(made) || repaired.Verdict() != nil || repaired.CA.Certificate().NotBefore.After(now) {
				t.Errorf("it is the same: %v, and the verdict is %+v", repaired.SameCA(made), repaired.Verdict())
			}
		})
	}
}
