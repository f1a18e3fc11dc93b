package plan

import (
	"encoding/json"
	"fmt"
	"reflect"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Target holds the fields of the configuration that these commands change. Records and plan files store it, so its
// JSON form must stay compatible.
type Target struct {
	TLS              *configv1alpha1.ImpersonationProxyTLSSpec `json:"tls"`
	ExternalEndpoint string                                    `json:"externalEndpoint"`
	LoadBalancerIP   string                                    `json:"loadBalancerIP"`
	// Mode is empty in what was recorded before it could be changed. Then it stays as it is.
	Mode configv1alpha1.ImpersonationProxyMode `json:"mode,omitempty"`
	// ServiceType is never empty in a configuration that was read. Where it is, it stays as it is.
	ServiceType configv1alpha1.ImpersonationProxyServiceType `json:"serviceType,omitempty"`
}

// TargetOf returns the part of spec that these commands change.
func TargetOf(spec *configv1alpha1.ImpersonationProxySpec) Target {
	copied := spec.DeepCopy()
	return Target{
		TLS: copied.TLS, ExternalEndpoint: copied.ExternalEndpoint,
		LoadBalancerIP: copied.Service.LoadBalancerIP, Mode: copied.Mode, ServiceType: ServiceType(copied),
	}
}

// In returns a copy of spec with the fields of the target.
func (t Target) In(spec *configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxySpec {
	changed := spec.DeepCopy()
	changed.TLS, changed.ExternalEndpoint, changed.Service.LoadBalancerIP = t.TLS.DeepCopy(), t.ExternalEndpoint,
		t.LoadBalancerIP
	if t.Mode != "" {
		changed.Mode = t.Mode
	}
	if t.ServiceType != "" && t.ServiceType != ServiceType(spec) {
		changed.Service.Type = t.ServiceType
	}
	return *changed
}

// Digested returns the target with a CA bundle replaced by its hash: enough to see that it is another one. How one
// certificate replaces another is no part of it.
func (t Target) Digested() Target {
	if t.TLS == nil {
		return t
	}
	t.TLS = t.TLS.DeepCopy()
	t.TLS.CATransition, t.TLS.ActivateAfter = "", nil
	if t.TLS.SecretName == "" {
		t.TLS = nil
		return t
	}
	if t.TLS.CertificateAuthorityData != "" {
		t.TLS.CertificateAuthorityData = "sha256:" + certs.Fingerprint([]byte(t.TLS.CertificateAuthorityData))
	}
	return t
}

// Describe says in a few words which certificate and which endpoint a target is about.
func (t Target) Describe() string {
	text := "the agent's generated certificate"
	if !ServesGenerated(t.TLS) {
		text = fmt.Sprintf("Secret %q", t.TLS.SecretName)
	}
	if t.ExternalEndpoint != "" {
		text += " at " + t.ExternalEndpoint
	}
	return text
}

// MergePatch is a merge patch that gives issuer the values of t, no matter which manager owns the fields, and sets
// annotations. A nil annotation is removed. The resourceVersion makes the API server refuse when the object has
// changed since it was read, so that fields and annotations are written together or not at all.
func MergePatch(issuer *configv1alpha1.CredentialIssuer, t Target, annotations map[string]any) (map[string]any, error) {
	now := TargetOf(issuer.Spec.ImpersonationProxy)
	proxy := map[string]any{}
	if !reflect.DeepEqual(now.TLS, t.TLS) {
		block, err := replaced(now.TLS, t.TLS)
		if err != nil {
			return nil, err
		}
		proxy["tls"] = block
	}
	if now.ExternalEndpoint != t.ExternalEndpoint {
		proxy["externalEndpoint"] = orNull(t.ExternalEndpoint)
	}
	service := map[string]any{}
	if now.LoadBalancerIP != t.LoadBalancerIP {
		service["loadBalancerIP"] = orNull(t.LoadBalancerIP)
	}
	if t.ServiceType != "" && now.ServiceType != t.ServiceType {
		service["type"] = string(t.ServiceType)
	}
	if len(service) > 0 {
		proxy["service"] = service
	}
	if t.Mode != "" && now.Mode != t.Mode {
		proxy["mode"] = string(t.Mode)
	}
	metadata := map[string]any{"resourceVersion": issuer.ResourceVersion}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	patch := map[string]any{"metadata": metadata}
	if len(proxy) > 0 {
		patch["spec"] = map[string]any{"impersonationProxy": proxy}
	}
	return patch, nil
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// replaced is the merge patch that turns one tls block into another; nil removes it.
func replaced(from, to *configv1alpha1.ImpersonationProxyTLSSpec) (any, error) {
	if to == nil {
		return nil, nil
	}
	before, err := asMap(from)
	if err != nil {
		return nil, err
	}
	after, err := asMap(to)
	if err != nil {
		return nil, err
	}
	for key := range before {
		if _, kept := after[key]; !kept {
			after[key] = nil
		}
	}
	return after, nil
}

func asMap(block *configv1alpha1.ImpersonationProxyTLSSpec) (map[string]any, error) {
	encoded, err := json.Marshal(block)
	if err != nil {
		return nil, fmt.Errorf("encoding the tls block: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return nil, fmt.Errorf("encoding the tls block: %w", err)
	}
	return fields, nil
}
