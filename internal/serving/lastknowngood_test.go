package serving

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestLastKnownGood(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("x", time.Now(), time.Hour))(t)
	pair := must.Get(ca.IssueServing(certs.SANs{DNSNames: []string{"a.example"}}, time.Now(), time.Hour))(t)
	certificate := must.Get(keyPair(append(pair.CertPEM, ca.CertPEM()...), pair.KeyPEM))(t)
	served := &Certificate{
		Certificate: certificate,
		Source:      SourceExternal,
		Secret:      types.NamespacedName{Namespace: "ns", Name: "theirs"},
		Bundle:      ca.CertPEM(),
	}
	data := must.Get(LastKnownGoodData(served))(t)
	if again, err := LastKnownGoodData(served); err != nil || !SameData(&corev1.Secret{Data: data}, again) {
		t.Errorf("the same certificate is another copy each time (%v)", err)
	}
	if SameData(nil, data) {
		t.Error("no Secret has the data")
	}
	kept := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kept"}, Data: data}
	got := must.Get(LastKnownGood(kept))(t)
	if diff := cmp.Diff(
		served.Certificate.Certificate,
		got.Certificate.Certificate,
	); diff != "" || got.SHA256() != served.SHA256() ||
		got.Secret != served.Secret || got.Source != SourceExternal ||
		string(got.Bundle) != string(served.Bundle) {
		t.Errorf("it came back as %+v %s", got, diff)
	}

	for name, test := range map[string]struct {
		m    *Certificate
		want bool
	}{
		"an external one":    {served, true},
		"a delegated one":    {&Certificate{Source: SourceExternal, Delegated: true}, false},
		"a generated one":    {&Certificate{Source: SourceGenerated}, false},
		"nothing in service": {nil, false},
	} {
		if got := KeepsLastKnownGood(test.m); got != test.want {
			t.Errorf("%s is kept: %v", name, got)
		}
	}
	for name, secret := range map[string]*corev1.Secret{
		"of somebody else": {Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM}},
		"damaged": {
			Data: map[string][]byte{"tls.crt": []byte("x"), "tls.key": pair.KeyPEM, lastKnownGoodNameKey: []byte("s")},
		},
	} {
		if got, err := LastKnownGood(secret); err == nil {
			t.Errorf("a copy that is %s is used: %+v", name, got)
		}
	}
}
