package plan

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Previous returns the newest revision before the configuration in spec that was in service; nil when there is none.
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

// isConfiguration says whether a field says what is served, and not how it replaces something else.
func isConfiguration(c FieldChange) bool {
	return c.Field != fieldTransition && c.Field != fieldActivateAfter
}

// clientsMeet says whether a field decides what clients meet.
func clientsMeet(c FieldChange) bool { return isConfiguration(c) && c.Field != fieldVerification }

// BackTo returns spec with the configuration that led to a revision. Its Spec must be known.
func BackTo(r *serving.Revision, spec *configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxySpec {
	wanted := *spec.DeepCopy()
	wanted.TLS, wanted.ExternalEndpoint, wanted.Service.LoadBalancerIP = r.Spec.TLS.DeepCopy(), r.Spec.ExternalEndpoint,
		r.Spec.LoadBalancerIP
	if r.Spec.ServiceType != "" {
		wanted.Service.Type = r.Spec.ServiceType
	}
	return wanted
}

// Describe says in a few words which certificate and which endpoint a configuration is about.
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

// MergePatch is a merge patch that gives issuer the wanted configuration, no matter which manager owns the fields. The
// resourceVersion makes the API server refuse when the object has changed since it was read.
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

// replaced is the merge patch that turns one tls block into another; nil removes it.
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
