// Package clienttrust decides whether a client certificate is trusted, and which user it names. It trusts the CAs that
// the API server publishes in a ConfigMap, and the CA of the certificates that pinniped issues.
package clienttrust

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// ConfigMap is the name of the ConfigMap in which the API server publishes its client CA and front proxy settings.
const ConfigMap = "extension-apiserver-authentication"

// Store combines the signer CA with the CAs and settings that the cluster publishes. It parses PEM only after a change.
// It is safe for concurrent use.
type Store struct {
	signer func() []byte
	core   corev1client.CoreV1Interface
	clock  clock.PassiveClock

	mu      sync.Mutex
	data    map[string]string // of the last ConfigMap
	cluster *settings
	last    *Trust
}

// NewStore returns a store that trusts the CAs in the PEM that signer returns. It trusts the cluster's CAs after the
// first Refresh. signer is called for each request; it returns nil when there is no CA.
func NewStore(signer func() []byte, core corev1client.CoreV1Interface, clk clock.PassiveClock) *Store {
	return &Store{signer: signer, core: core, clock: clk, cluster: &settings{}}
}

// Current returns the current Trust. An unchanged pointer means unchanged CAs and settings.
func (s *Store) Current() *Trust {
	s.mu.Lock()
	defer s.mu.Unlock()
	if signer := s.signer(); s.last == nil || s.last.cluster != s.cluster || !bytes.Equal(s.last.signer, signer) {
		s.last = newTrust(signer, s.cluster, s.clock)
	}
	return s.last
}

// Refresh reads the ConfigMap. A missing ConfigMap is not an error and changes nothing: the API server recreates a
// deleted one within a minute.
func (s *Store) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	configMap, err := s.core.ConfigMaps(metav1.NamespaceSystem).Get(ctx, ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(2).Info("Found no client authentication settings",
			"configMap", klog.KRef(metav1.NamespaceSystem, ConfigMap))
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading ConfigMap %q: %w", metav1.NamespaceSystem+"/"+ConfigMap, err)
	}
	s.take(ctx, configMap.Data)
	return nil
}

// take applies the data of the ConfigMap. Invalid data changes nothing. Removed CAs are no longer trusted.
func (s *Store) take(ctx context.Context, data map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(data, s.data) {
		return
	}
	s.data = data
	log := klog.FromContext(ctx).WithValues("configMap", klog.KRef(metav1.NamespaceSystem, ConfigMap))
	next, err := parseSettings(data)
	if err != nil {
		log.Error(err, "Kept the last known good client authentication settings")
		return
	}
	s.cluster = next
	log.Info("Read the cluster's client authentication settings",
		"clientCAs", len(next.users), "frontProxyCAs", len(next.proxies))
}

// settings are parsed from the ConfigMap.
type settings struct {
	users, proxies []*x509.Certificate             // CAs
	proxyNames     headerrequest.StaticStringSlice // common names of front proxies; empty means any
	// headers that identify the user of a front proxy
	usernames, uids, groups, extraPrefixes headerrequest.StaticStringSlice
}

// parseSettings reads all keys or fails: the CA of one version must never be combined with the allowed names of
// another.
func parseSettings(data map[string]string) (*settings, error) {
	s := &settings{}
	list := func(into *headerrequest.StaticStringSlice) func([]byte) error {
		return func(text []byte) error { return json.Unmarshal(text, into) }
	}
	roots := func(into *[]*x509.Certificate) func([]byte) error {
		return func(text []byte) (err error) { *into, err = cert.ParseCertsPEM(text); return err }
	}
	for key, parse := range map[string]func([]byte) error{
		"client-ca-file":                     roots(&s.users),
		"requestheader-client-ca-file":       roots(&s.proxies),
		"requestheader-allowed-names":        list(&s.proxyNames),
		"requestheader-username-headers":     list(&s.usernames),
		"requestheader-uid-headers":          list(&s.uids),
		"requestheader-group-headers":        list(&s.groups),
		"requestheader-extra-headers-prefix": list(&s.extraPrefixes),
	} {
		if data[key] == "" {
			continue
		}
		if err := parse([]byte(data[key])); err != nil {
			return nil, fmt.Errorf("parsing %s: %w", key, err)
		}
	}
	return s, nil
}
