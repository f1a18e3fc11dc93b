package iptlstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// BumpSecret gives the Secret a new resource version, as every change does.
func (c *Cluster) BumpSecret() {
	c.version++
	c.TLSSecret.ResourceVersion = strconv.Itoa(c.version)
}

// ApplySecret is a server-side apply of the Secret, with conflicts.
func (c *Cluster) ApplySecret(_ context.Context, namespace, name string, object any,
	opts discovery.ApplyOptions,
) (*corev1.Secret, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.BeforeSecret != nil {
		c.BeforeSecret(c)
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var wanted corev1.Secret
	if err := json.Unmarshal(encoded, &wanted); err != nil {
		return nil, err
	}
	exists := c.TLSSecret != nil && c.TLSSecret.Name == name
	switch version := wanted.ResourceVersion; {
	case exists && version == "" && !opts.Force, exists && version != "" && version != c.TLSSecret.ResourceVersion,
		!exists && version != "":
		return nil, fmt.Errorf("the Secret has been modified: %w", discovery.ErrConflict)
	case exists && wanted.Type != c.TLSSecret.Type:
		return nil, errors.New("the type of a Secret never changes")
	}
	result := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "made"},
		Type:       wanted.Type, Data: map[string][]byte{},
	}
	if exists {
		result = c.TLSSecret.DeepCopy()
	}
	for _, key := range c.owned {
		delete(result.Data, key)
	}
	maps.Copy(result.Data, wanted.Data)
	if opts.DryRun {
		return result, nil
	}
	c.TLSSecret, c.owned = result, slices.Collect(maps.Keys(wanted.Data))
	c.BumpSecret()
	if c.AfterSecret != nil {
		c.AfterSecret(c)
	}
	return c.TLSSecret.DeepCopy(), nil
}

// Certificate returns cert-manager's Certificate, if there is one.
func (c *Cluster) Certificate(_ context.Context, _, name string) (*discovery.Certificate, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.CertManager == nil {
		return nil, fmt.Errorf("reading certificates %q: %w", name, discovery.ErrNotFound)
	}
	return c.CertManager, nil
}

// Certificates returns cert-manager's Certificate, if there is one.
func (c *Cluster) Certificates(context.Context, string) ([]discovery.Certificate, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.CertificatesErr != nil {
		return nil, c.CertificatesErr
	}
	if c.CertManager == nil {
		return nil, fmt.Errorf("listing certificates: %w", discovery.ErrNotFound)
	}
	found := *c.CertManager
	if c.AfterList != nil {
		c.AfterList(c)
	}
	return []discovery.Certificate{found}, nil
}

// DeleteSecret deletes the Secret, unless it has changed since.
func (c *Cluster) DeleteSecret(_ context.Context, secret *corev1.Secret) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.TLSSecret == nil || c.TLSSecret.ResourceVersion != secret.ResourceVersion || c.TLSSecret.UID != secret.UID {
		return discovery.ErrConflict
	}
	c.TLSSecret, c.owned = nil, nil
	return nil
}

// Secret returns a copy of a Secret, and records that it was read.
func (c *Cluster) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.SecretsRead = append(c.SecretsRead, namespace+"/"+name)
	if name == "pinniped-concierge-impersonation-proxy-ca-certificate" && (c.CASecret != nil || c.CASecretErr != nil) {
		return c.CASecret.DeepCopy(), c.CASecretErr
	}
	if other, ok := c.Others[name]; ok {
		return other.DeepCopy(), nil
	}
	if c.ReadErr != nil {
		return nil, c.ReadErr
	}
	if c.TLSSecret == nil || c.TLSSecret.Name != name {
		return nil, fmt.Errorf("reading secrets %q: %w", name, discovery.ErrNotFound)
	}
	return c.TLSSecret.DeepCopy(), nil
}
