package clienttrust

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/client-go/util/cert"
)

const maxBundleBytes = 1 << 20

// settings are what the cluster publishes in the ConfigMap extension-apiserver-authentication.
type settings struct {
	clientRoots []*x509.Certificate
	frontProxy  frontProxySettings
}

type frontProxySettings struct {
	roots        []*x509.Certificate
	allowedNames []string
	headers      Headers
}

func parseSettings(data map[string]string, last *settings) (*settings, error) {
	next := &settings{}
	var problems []error
	var err error
	if next.clientRoots, err = parseRoots(data, "client-ca-file"); err != nil {
		problems = append(problems, err)
		next.clientRoots = last.clientRoots
	}
	if next.frontProxy, err = parseFrontProxy(data); err != nil {
		// All or nothing: the CA of one version must not meet the allowed names of another.
		problems = append(problems, err)
		next.frontProxy = last.frontProxy
	}
	return next, errors.Join(problems...)
}

func parseFrontProxy(data map[string]string) (s frontProxySettings, err error) {
	if s.roots, err = parseRoots(data, "requestheader-client-ca-file"); err != nil || s.roots == nil {
		return s, err
	}
	for key, into := range map[string]*[]string{
		"requestheader-allowed-names":        &s.allowedNames,
		"requestheader-username-headers":     &s.headers.Usernames,
		"requestheader-uid-headers":          &s.headers.UIDs,
		"requestheader-group-headers":        &s.headers.Groups,
		"requestheader-extra-headers-prefix": &s.headers.ExtraPrefixes,
	} {
		if text := data[key]; text != "" {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				return s, fmt.Errorf("parsing %s: %w", key, err)
			}
		}
	}
	return s, nil
}

// parseRoots returns nil when there are none.
func parseRoots(data map[string]string, key string) ([]*x509.Certificate, error) {
	if data[key] == "" {
		return nil, nil
	}
	roots, err := parseBundle([]byte(data[key]))
	if err != nil {
		return nil, fmt.Errorf("parsing %s: %w", key, err)
	}
	return roots, nil
}

// parseBundle reads all certificates of a PEM file, as the API server does.
func parseBundle(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxBundleBytes {
		return nil, fmt.Errorf("a CA bundle of %d bytes is larger than %d", len(data), maxBundleBytes)
	}
	return cert.ParseCertsPEM(data)
}
