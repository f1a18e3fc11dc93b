// Package handover is what the impersonation proxy tells everybody about the CA bundle that it is to be verified with,
// so that kubeconfigs which trust it already can follow when that changes. The proxy encodes the document, and
// "pinniped kubeconfig rotate" decodes it. See docs/adr on how trust is handed on.
package handover

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

// MaxSize is how many bytes a document may have. A CA bundle of a hundred certificates fits.
const MaxSize = 256 << 10

const (
	apiVersion = "handover.pinniped.dev/v1"
	kind       = "AdvertisedCABundle"
)

// document is the JSON form.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// CertificateAuthorityData is PEM, in base64; empty when clients are to use their system roots.
	CertificateAuthorityData []byte `json:"certificateAuthorityData"`
}

// ErrNoDocument means that what came is something else, so the server does not hand on its CA bundle.
var ErrNoDocument = errors.New("this is not the document with a CA bundle")

// Encode returns the document for a CA bundle: PEM, or nothing for the system roots.
func Encode(bundle []byte) ([]byte, error) {
	if bundle == nil {
		bundle = []byte{} // "" and not null
	}
	encoded, err := json.Marshal(document{APIVersion: apiVersion, Kind: kind, CertificateAuthorityData: bundle})
	if err != nil {
		return nil, fmt.Errorf("encoding the CA bundle: %w", err)
	}
	if len(encoded) > MaxSize {
		return nil, fmt.Errorf("the CA bundle is too large to be handed on: the document has %d bytes, %d are possible",
			len(encoded), MaxSize)
	}
	return encoded, nil
}

// Decode reads a document and returns the CA bundle: PEM of certificates and nothing else, or nothing for the system
// roots. It reads no more than MaxSize bytes. What is no such document gives ErrNoDocument; any other error means that
// it is one, and not usable.
func Decode(r io.Reader) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
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
		return nil, fmt.Errorf("the document is of version %.40q; this program knows %q", found.APIVersion, apiVersion)
	}
	if found.CertificateAuthorityData == nil {
		return nil, errors.New("the document has no certificateAuthorityData")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the document")
	}
	return clean(found.CertificateAuthorityData)
}

// clean checks that a bundle has certificates and nothing else, and returns it as it is.
func clean(bundle []byte) ([]byte, error) {
	if len(bundle) == 0 {
		return nil, nil
	}
	members, problems := certs.ParseBundle(bundle)
	if len(members) == 0 || slices.ContainsFunc(problems, certs.Finding.Refuses) {
		return nil, errors.New("the CA bundle in the document has other things than certificates")
	}
	return bundle, nil
}
