package agent

import (
	"bytes"
	"sync/atomic"

	"github.com/pinniped-toolkit/pinniped/internal/proxy"
)

const (
	enabled  = "enabled"
	disabled = "disabled"
)

// advertised is the CA bundle in the status of the CredentialIssuer, as this replica's informer shows it.
type advertised struct {
	bundle atomic.Pointer[proxy.CABundle]
}

// set notes the bundle; found is false while none is advertised. Only one goroutine calls it.
func (a *advertised) set(bundle []byte, found bool) {
	last := a.bundle.Load()
	switch {
	case !found:
		a.bundle.Store(nil)
	case last == nil || !bytes.Equal(last.PEM, bundle):
		a.bundle.Store(&proxy.CABundle{PEM: bundle})
	}
}

// handedOver returns what the proxy shows to everybody, or nil if the configuration has it switched off.
func (a *agent) handedOver() func() *proxy.CABundle {
	if a.config.CABundleHandOver == disabled {
		return nil
	}
	return a.advertised.bundle.Load
}
