package signer

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newCA(t *testing.T, name string) *certs.CA {
	t.Helper()
	return must.Get(certs.NewCA(name, noon, 24*time.Hour))(t)
}

func TestSigner(t *testing.T) {
	t.Parallel()
	s := &Signer{Clock: clocktesting.NewFakePassiveClock(noon)}

	if _, err := s.IssueClientCertificate("ann", nil, nil, time.Minute); !errors.Is(err, ErrNotLoaded) {
		t.Fatalf("issuing without a CA: got %v, want ErrNotLoaded", err)
	}

	first := newCA(t, "first")
	if !s.Load(first, nil) {
		t.Fatal("loading the first CA changed nothing")
	}
	before := s.Current()
	if s.Load(first, nil) || s.Current() != before {
		t.Fatal("loading the same CA again made a new generation")
	}

	pair := must.Get(s.IssueClientCertificate("ann", []string{"dev", "ops"}, []string{"k=v"}, 5*time.Minute))(t)
	block, _ := pem.Decode(pair.CertPEM)
	leaf := must.Get(x509.ParseCertificate(block.Bytes))(t)
	if leaf.Subject.CommonName != "ann" || len(leaf.Subject.Organization) != 2 ||
		leaf.Subject.OrganizationalUnit[0] != "k=v" {
		t.Errorf("subject is %v", leaf.Subject)
	}
	if !leaf.NotAfter.Equal(noon.Add(5*time.Minute)) || !leaf.NotBefore.Equal(noon.Add(-certs.Backdate)) {
		t.Errorf("valid from %v to %v", leaf.NotBefore, leaf.NotAfter)
	}

	second := newCA(t, "second")
	if !s.Load(second, first.CertPEM()) {
		t.Fatal("loading the second CA changed nothing")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.Current().Bundle())
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: noon, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		t.Errorf("a certificate of the CA before is no longer accepted: %v", err)
	}
	if !bytes.HasPrefix(s.Current().Bundle(), second.CertPEM()) {
		t.Error("the signing CA does not come first")
	}

	if !s.Clear() || s.Clear() || s.Current() != nil {
		t.Error("Clear does not forget the CA exactly once")
	}
}
