package certs

import (
	"testing"
)

func TestGoodCertificates(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	wantFindings(t, p.input(t))
	direct := p.root.newLeaf(t)
	report := wantFindings(t, inputFor(t, p.root, direct))
	if report.Findings == nil {
		t.Error("no findings are null in JSON, not []")
	}
}

func TestDamagedLeaf(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.CertPEM = concat(block("CERTIFICATE", p.leaf.Raw[:300]), p.inter.pem())
	if report := wantFindings(t, in, "error NotACertificate"); report.Leaf != nil {
		t.Errorf("the intermediate %s is taken for the serving certificate", report.Subject)
	}
	in.CertPEM = concat(p.leaf.keyPEM(t), p.leaf.pem(), p.inter.pem())
	if report := wantFindings(t, in, "error NotACertificate"); report.SHA256 != Fingerprint(p.leaf.Raw) {
		t.Errorf("the serving certificate behind a key is not found: %s", report.Subject)
	}
}
