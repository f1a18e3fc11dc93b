package agent

import (
	"bytes"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/handover"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestHandedOver(t *testing.T) {
	t.Parallel()
	a := &agent{config: &Config{TrustBundleEndpoint: "disabled"}}
	if a.handedOver() != nil {
		t.Error("it is not off")
	}
	a.config.TrustBundleEndpoint = "enabled"
	shown := a.handedOver()
	if shown() != nil {
		t.Error("there is a bundle before one is advertised")
	}
	ca, err := certs.NewCA("ca", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, bundle := range [][]byte{nil, ca.CertPEM()} {
		a.advertised.set(bundle, true)
		if found, err := handover.Decode(bytes.NewReader(shown())); err != nil || !bytes.Equal(found, bundle) {
			t.Errorf("want the advertised bundle shown, got %q, %v", found, err)
		}
	}
	a.advertised.set(bytes.Repeat([]byte("x"), handover.MaxSize), true)
	if shown() != nil {
		t.Error("a bundle that is too large is shown")
	}
	a.advertised.set([]byte("x"), false)
	if shown() != nil {
		t.Error("a bundle that is not advertised any more is still shown")
	}
}
