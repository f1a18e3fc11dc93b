package certs

import (
	"bytes"
	"encoding/pem"
)

// UnionBundle returns a CA bundle with all certificates of the given ones, in order and without duplicates. Clients
// trust it while a CA is replaced. It omits what cannot be parsed; see ParseBundle.
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
