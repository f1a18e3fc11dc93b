package certs

import (
	"testing"
)

func TestGoodCertificates(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	wantFindings(t, p.input(t))
	direct := p.root.newLeaf(t)
	wantFindings(t, inputFor(t, p.root, direct))
}
