package agent

import (
	"bytes"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
)

const (
	enabled  = "enabled"
	disabled = "disabled"
)

// publishedBundle is the CA bundle in the status of the CredentialIssuer, as this replica's informer has it, and its
// document.
type publishedBundle struct {
	bundle   []byte
	found    bool
	document atomic.Value // []byte; nil while there is none
}

// set stores the bundle; found is false while none is published. It is not safe for concurrent use.
func (a *publishedBundle) set(bundle []byte, found bool) {
	if found == a.found && bytes.Equal(bundle, a.bundle) {
		return
	}
	a.bundle, a.found = bundle, found
	var document []byte
	if found {
		var err error
		if document, err = trustbundle.Encode(bundle); err != nil {
			klog.Background().Error(err, "Failed to publish the CA bundle")
		}
	}
	a.document.Store(document)
}

// get returns the document, or nil while there is none.
func (a *publishedBundle) get() []byte {
	document, _ := a.document.Load().([]byte)
	return document
}

// used records that a client uses the proxy of this replica.
func (a *agent) used(name string) {
	if usage, serving := a.usage.Load(), a.holder.Current(); usage != nil && serving != nil {
		usage.Note(name, serving.Certificate.Leaf)
	}
}

// trustBundle returns the source of the trust bundle endpoint's document, or nil if the endpoint is disabled.
func (a *agent) trustBundle() func() []byte {
	if a.config.TrustBundleEndpoint == disabled {
		return nil
	}
	return a.bundle.get
}
