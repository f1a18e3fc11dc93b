package clienttrust

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
)

const (
	maxBundleBytes        = 1 << 20
	maxBundleCertificates = 1000
)

// settings are what the cluster publishes in the ConfigMap extension-apiserver-authentication.
type settings struct {
	clientCA        []byte
	frontProxyCA    []byte
	allowedNames    []string
	headers         Headers
	clientRoots     []*x509.Certificate
	frontProxyRoots []*x509.Certificate
}

func (c *settings) equal(o *settings) bool {
	as, _ := json.Marshal([]any{c.allowedNames, c.headers})
	bs, _ := json.Marshal([]any{o.allowedNames, o.headers})
	return bytes.Equal(c.clientCA, o.clientCA) && bytes.Equal(c.frontProxyCA, o.frontProxyCA) && bytes.Equal(as, bs)
}

func parseSettings(data map[string]string, last *settings) (*settings, error) {
	next := &settings{}
	var problems []error
	if text := data["client-ca-file"]; text != "" {
		roots, err := parseBundle([]byte(text))
		if err != nil {
			problems = append(problems, fmt.Errorf("parsing client-ca-file: %w", err))
			next.clientCA, next.clientRoots = last.clientCA, last.clientRoots
		} else {
			next.clientCA, next.clientRoots = []byte(text), roots
		}
	}
	if err := next.parseFrontProxy(data); err != nil {
		// All or nothing: the CA of one version must not meet the allowed names of another.
		problems = append(problems, err)
		next.frontProxyCA, next.frontProxyRoots = last.frontProxyCA, last.frontProxyRoots
		next.allowedNames, next.headers = last.allowedNames, last.headers
	}
	return next, errors.Join(problems...)
}

func (c *settings) parseFrontProxy(data map[string]string) error {
	text := data["requestheader-client-ca-file"]
	if text == "" {
		return nil
	}
	roots, err := parseBundle([]byte(text))
	if err != nil {
		return fmt.Errorf("parsing requestheader-client-ca-file: %w", err)
	}
	c.frontProxyCA, c.frontProxyRoots = []byte(text), roots
	for _, list := range []struct {
		key  string
		into *[]string
	}{
		{"requestheader-allowed-names", &c.allowedNames},
		{"requestheader-username-headers", &c.headers.Usernames},
		{"requestheader-uid-headers", &c.headers.UIDs},
		{"requestheader-group-headers", &c.headers.Groups},
		{"requestheader-extra-headers-prefix", &c.headers.ExtraPrefixes},
	} {
		text := data[list.key]
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), list.into); err != nil {
			return fmt.Errorf("parsing %s: %w", list.key, err)
		}
	}
	return nil
}

// parseBundle reads all certificates of a PEM file. Like the API server, it ignores other blocks and the text between
// them.
func parseBundle(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxBundleBytes {
		return nil, fmt.Errorf("a CA bundle of %d bytes is larger than %d", len(data), maxBundleBytes)
	}
	var certificates []*x509.Certificate
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if len(certificates) == maxBundleCertificates {
			return nil, fmt.Errorf("more than %d certificates in a CA bundle", maxBundleCertificates)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parsing certificate %d of a CA bundle: %w", len(certificates)+1, err)
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, errors.New("no certificate in a CA bundle")
	}
	return certificates, nil
}
