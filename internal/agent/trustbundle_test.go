package agent

import (
	"bytes"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestTrustBundle(t *testing.T) {
	t.Parallel()
	a := &agent{config: &Config{TrustBundleEndpoint: "disabled"}}
	if a.trustBundle() != nil {
		t.Error("it is not off")
	}
	a.config.TrustBundleEndpoint = "enabled"
	shown := a.trustBundle()
	if shown() != nil {
		t.Error("there is a bundle before one is published")
	}
	ca := must.Get(certs.NewCA("ca", time.Now(), time.Hour))(t)
	for _, bundle := range [][]byte{nil, ca.CertPEM()} {
		a.bundle.set(bundle, true)
		if found, err := trustbundle.Decode(bytes.NewReader(shown())); err != nil || !bytes.Equal(found, bundle) {
			t.Errorf("want the published bundle, got %q, %v", found, err)
		}
	}
	a.bundle.set(bytes.Repeat([]byte("x"), trustbundle.MaxSize), true)
	if shown() != nil {
		t.Error("a bundle that is too large is shown")
	}
	a.bundle.set([]byte("x"), false)
	if shown() != nil {
		t.Error("a bundle that is no longer published is still returned")
	}
}
