// Package trustbundle implements the trust bundle endpoint of the impersonation proxy: the document with the CA bundle
// that verifies the proxy, and the policy by which kubeconfigs adopt a new bundle. The proxy encodes the document;
// "pinniped kubeconfig rotate" and logins decode it. See docs/adr/0022-trust-bundle-endpoint.md.
package trustbundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Path is where the proxy serves the document, to GET requests without credentials.
const Path = "/.well-known/pinniped-ca-bundle"

// MaxSize is the maximum size of a document in bytes. A CA bundle of a hundred certificates fits.
const MaxSize = 256 << 10

const (
	apiVersion = "trustbundle.pinniped.dev/v1"
	kind       = "TrustBundle"
)

// document is the JSON form of a trust bundle.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// CertificateAuthorityData is PEM, in base64; empty for the system roots.
	CertificateAuthorityData []byte `json:"certificateAuthorityData"`
}

// ErrNoDocument means that the server has no trust bundle endpoint: its response is not a trust bundle.
var ErrNoDocument = errors.New("the response is not a trust bundle")

// Encode returns the document for a CA bundle (PEM), or for the system roots if bundle is empty. It returns an error if
// the document exceeds MaxSize.
func Encode(bundle []byte) ([]byte, error) {
	if bundle == nil {
		bundle = []byte{} // encodes to "", not null
	}
	encoded, err := json.Marshal(document{APIVersion: apiVersion, Kind: kind, CertificateAuthorityData: bundle})
	if err != nil {
		return nil, fmt.Errorf("encoding the CA bundle: %w", err)
	}
	if len(encoded) > MaxSize {
		return nil, fmt.Errorf("the CA bundle is too large to be published: the document has %d bytes, the limit is %d",
			len(encoded), MaxSize)
	}
	return encoded, nil
}

// Decode reads a document and returns the CA bundle (PEM), which contains only certificates, or nil for the system
// roots. It reads at most MaxSize bytes. It returns ErrNoDocument for other content; any other error means that the
// document is unusable.
func Decode(r io.Reader) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	if len(content) > MaxSize {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrNoDocument, MaxSize)
	}
	var found document
	decoder := json.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&found); err != nil || found.Kind != kind {
		return nil, ErrNoDocument
	}
	if found.APIVersion != apiVersion {
		return nil, fmt.Errorf("the document has version %.40q, not the supported %q", found.APIVersion, apiVersion)
	}
	if found.CertificateAuthorityData == nil {
		return nil, errors.New("the document has no certificateAuthorityData")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("trailing data after document")
	}
	return clean(found.CertificateAuthorityData)
}

// clean returns an error unless the bundle contains only certificates.
func clean(bundle []byte) ([]byte, error) {
	if len(bundle) == 0 {
		return nil, nil
	}
	members, problems := certs.ParseBundle(bundle)
	if len(members) == 0 || slices.ContainsFunc(problems, certs.Finding.Refuses) {
		return nil, errors.New("the CA bundle in the document contains more than certificates")
	}
	return bundle, nil
}
