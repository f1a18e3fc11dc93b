package plan

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

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
