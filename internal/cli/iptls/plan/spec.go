package plan

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// FieldChange is a changed field. For a CA bundle, From and To are descriptions.
type FieldChange = result.FieldChange

// ChangesBetween lists the fields that differ.
func ChangesBetween(from, to configv1alpha1.ImpersonationProxySpec) []FieldChange {
	var before, after configv1alpha1.ImpersonationProxyTLSSpec
	if from.TLS != nil {
		before = *from.TLS
	}
	if to.TLS != nil {
		after = *to.TLS
	}
	var changes []FieldChange
	add := func(field, old, changed string) {
		if old != changed {
			changes = append(changes, FieldChange{Field: field, From: old, To: changed})
		}
	}
	add(FieldSecret, before.SecretName, after.SecretName)
	if before.CertificateAuthorityData != after.CertificateAuthorityData { // bundles may share a description
		changes = append(changes, FieldChange{
			Field: FieldBundle, From: DescribeBundle(before.CertificateAuthorityData),
			To: DescribeBundle(after.CertificateAuthorityData),
		})
	}
	add(FieldSource, sourceText(before), sourceText(after))
	add(fieldVerification, string(before.Verification), string(after.Verification))
	add(fieldTransition, string(before.CATransition), string(after.CATransition))
	add(fieldActivateAfter, duration(before.ActivateAfter), duration(after.ActivateAfter))
	add(fieldEndpoint, from.ExternalEndpoint, to.ExternalEndpoint)
	add(fieldMode, string(from.Mode), string(to.Mode))
	add(fieldServiceType, string(ServiceType(&from)), string(ServiceType(&to)))
	add(fieldLoadBalancerIP, from.Service.LoadBalancerIP, to.Service.LoadBalancerIP)
	return changes
}

func sourceText(tls configv1alpha1.ImpersonationProxyTLSSpec) string {
	if tls.CertificateAuthorityDataSource == nil {
		return ""
	}
	return tls.CertificateAuthorityDataSource.String()
}

func duration(d *metav1.Duration) string {
	if d == nil {
		return ""
	}
	return d.Duration.String()
}

// DescribeBundle describes a CA bundle in one line.
func DescribeBundle(data string) string {
	if data == "" {
		return ""
	}
	bundle, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	if err != nil {
		return "(not base64)"
	}
	return serving.Describe(bundle)
}

// OrNone returns "(none)" for an empty text.
func OrNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

// Previous returns the newest revision that was in service with another configuration than spec, or nil.
func Previous(h serving.History, spec *configv1alpha1.ImpersonationProxySpec) *serving.Revision {
	for i := len(h.Revisions) - 1; i >= 0; i-- {
		r := &h.Revisions[i]
		if r.Spec != nil && r.Outcome == serving.OutcomeInService &&
			slices.ContainsFunc(ChangesBetween(*spec, BackTo(r, spec)), isConfiguration) {
			return r
		}
	}
	return nil
}

// isConfiguration reports whether a field affects what is served, and not only the transition to it.
func isConfiguration(c FieldChange) bool {
	return c.Field != fieldTransition && c.Field != fieldActivateAfter
}

// clientsMeet reports whether a field affects what clients see.
func clientsMeet(c FieldChange) bool { return isConfiguration(c) && c.Field != fieldVerification }

// BackTo returns spec with the configuration of a revision, whose Spec must not be nil.
func BackTo(r *serving.Revision, spec *configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxySpec {
	wanted := *spec.DeepCopy()
	wanted.TLS, wanted.ExternalEndpoint, wanted.Service.LoadBalancerIP = r.Spec.TLS.DeepCopy(), r.Spec.ExternalEndpoint,
		r.Spec.LoadBalancerIP
	if r.Spec.ServiceType != "" {
		wanted.Service.Type = r.Spec.ServiceType
	}
	return wanted
}

// Describe returns a short description of the certificate and the endpoint in a spec.
func Describe(spec *configv1alpha1.ImpersonationProxySpec) string {
	text := "the agent's generated certificate"
	if !ServesGenerated(spec.TLS) {
		text = fmt.Sprintf("Secret %q", spec.TLS.SecretName)
	}
	if spec.ExternalEndpoint != "" {
		text += " at " + spec.ExternalEndpoint
	}
	return text
}

// MergePatch returns a merge patch from issuer to the wanted configuration, regardless of field managers. With
// resourceVersion, the API server returns a conflict if the object has changed since.
func MergePatch(
	issuer *configv1alpha1.CredentialIssuer, wanted configv1alpha1.ImpersonationProxySpec,
) (map[string]any, error) {
	now, proxy, service := issuer.Spec.ImpersonationProxy, map[string]any{}, map[string]any{}
	if !reflect.DeepEqual(now.TLS, wanted.TLS) {
		block, err := replaced(now.TLS, wanted.TLS)
		if err != nil {
			return nil, err
		}
		proxy["tls"] = block
	}
	if now.ExternalEndpoint != wanted.ExternalEndpoint {
		proxy["externalEndpoint"] = orNull(wanted.ExternalEndpoint)
	}
	if now.Service.LoadBalancerIP != wanted.Service.LoadBalancerIP {
		service["loadBalancerIP"] = orNull(wanted.Service.LoadBalancerIP)
	}
	if ServiceType(now) != ServiceType(&wanted) {
		service["type"] = string(ServiceType(&wanted))
	}
	if len(service) > 0 {
		proxy["service"] = service
	}
	if now.Mode != wanted.Mode {
		proxy["mode"] = string(wanted.Mode)
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": issuer.ResourceVersion},
		"spec":     map[string]any{"impersonationProxy": proxy},
	}, nil
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// replaced returns the merge patch from one tls block to another; nil removes it.
func replaced(from, to *configv1alpha1.ImpersonationProxyTLSSpec) (any, error) {
	if to == nil {
		return nil, nil
	}
	var before, after map[string]any
	for block, fields := range map[*configv1alpha1.ImpersonationProxyTLSSpec]*map[string]any{from: &before, to: &after} {
		encoded, err := json.Marshal(block)
		if err == nil {
			err = json.Unmarshal(encoded, fields)
		}
		if err != nil {
			return nil, fmt.Errorf("encoding the tls block: %w", err)
		}
	}
	for key := range before {
		if _, kept := after[key]; !kept {
			after[key] = nil
		}
	}
	return after, nil
}
