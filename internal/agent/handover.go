package agent

import (
	"bytes"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/handover"
)

const (
	enabled  = "enabled"
	disabled = "disabled"
)

// advertised is the CA bundle in the status of the CredentialIssuer, as this replica's informer shows it, and the
// document with it.
type advertised struct {
	bundle   []byte
	found    bool
	document atomic.Value // []byte; nil while there is none
}

// set notes the bundle; found is false while none is advertised. Only one goroutine calls it.
func (a *advertised) set(bundle []byte, found bool) {
	if found == a.found && bytes.Equal(bundle, a.bundle) {
		return
	}
	a.bundle, a.found = bundle, found
	var document []byte
	if found {
		var err error
		if document, err = handover.Encode(bundle); err != nil {
			klog.Background().Error(err, "Could not hand on the advertised CA bundle")
		}
	}
	a.document.Store(document)
}

// get returns the document, nil while there is none.
func (a *advertised) get() []byte {
	document, _ := a.document.Load().([]byte)
	return document
}

// used notes that a client uses the proxy of this replica.
func (a *agent) used(name string) {
	if usage, serving := a.usage.Load(), a.holder.Current(); usage != nil && serving != nil {
		usage.Note(name, serving.Certificate.Leaf)
	}
}

// handedOver returns what the proxy shows to everybody, or nil if the configuration has it switched off.
func (a *agent) handedOver() func() []byte {
	if a.config.TrustBundleEndpoint == disabled {
		return nil
	}
	return a.advertised.get
}
