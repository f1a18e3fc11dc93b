package agent

import (
	"testing"
)

func TestHandedOver(t *testing.T) {
	t.Parallel()
	a := &agent{config: &Config{CABundleHandOver: "disabled"}}
	if a.handedOver() != nil {
		t.Error("it is not off")
	}
	a.config.CABundleHandOver = "enabled"
	shown := a.handedOver()
	if shown() != nil {
		t.Error("there is a bundle before one is advertised")
	}
	a.advertised.set([]byte("x"), true)
	first := shown()
	a.advertised.set([]byte("x"), true)
	if first == nil || string(first.PEM) != "x" || shown() != first {
		t.Error("the bundle is not the advertised one, or not the same twice")
	}
	a.advertised.set(nil, true)
	if now := shown(); now == nil || len(now.PEM) != 0 {
		t.Error("system roots are not shown as such")
	}
	a.advertised.set([]byte("x"), false)
	if shown() != nil {
		t.Error("a bundle that is not advertised any more is still shown")
	}
}
