package certs

import (
	"bytes"
	"encoding/pem"
)

// UnionBundle returns one CA bundle with every certificate of the given ones, each once, in their order: what clients
// are to trust while a CA is replaced. What cannot be read in a bundle is left out; ParseBundle says what that is.
func UnionBundle(bundles ...[]byte) []byte {
	var union bytes.Buffer
	seen := map[string]bool{}
	for _, bundle := range bundles {
		certificates, _ := ParseBundle(bundle)
		for _, cert := range certificates {
			if print := Fingerprint(cert.Raw); !seen[print] {
				seen[print] = true
				union.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
			}
		}
	}
	return union.Bytes()
}
