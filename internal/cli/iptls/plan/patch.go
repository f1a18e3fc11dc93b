package plan

import (
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// FieldManager is the name under which the CLI owns fields.
const FieldManager = "pinniped-cli"

// paths of the fields that the command may own.
func tlsPath() []string      { return []string{"spec", "impersonationProxy", "tls"} }
func endpointPath() []string { return []string{"spec", "impersonationProxy", "externalEndpoint"} }
func loadBalancerIPPath() []string {
	return []string{"spec", "impersonationProxy", "service", "loadBalancerIP"}
}

// ApplyObject returns what is applied so that issuer gets the wanted spec: the tls block, and the fields that the flags
// named. What an earlier run of ours owns is applied again with its value, as server-side apply takes leaving out for
// removing. The resourceVersion makes the API server refuse when the object has changed since it was read.
func ApplyObject(issuer *configv1alpha1.CredentialIssuer, wanted configv1alpha1.ImpersonationProxySpec, req Request) map[string]any {
	current := issuer.Spec.ImpersonationProxy
	proxy := map[string]any{}
	if wanted.TLS != nil {
		tls := map[string]any{"secretName": wanted.TLS.SecretName}
		if wanted.TLS.Verification != "" {
			tls["verification"] = string(wanted.TLS.Verification)
		}
		// An empty value takes the place of one that another manager may have set, too.
		if data := wanted.TLS.CertificateAuthorityData; data != "" || current.TLS != nil && current.TLS.CertificateAuthorityData != "" {
			tls["certificateAuthorityData"] = data
		}
		proxy["tls"] = tls
	}
	if req.Endpoint != nil || ownsField(issuer, endpointPath()) && wanted.ExternalEndpoint != "" {
		proxy["externalEndpoint"] = wanted.ExternalEndpoint
	}
	if ip := wanted.Service.LoadBalancerIP; ip != "" && (req.LoadBalancerIP != nil || ownsField(issuer, loadBalancerIPPath())) {
		proxy["service"] = map[string]any{"loadBalancerIP": ip}
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": issuer.ResourceVersion},
		"spec":     map[string]any{"impersonationProxy": proxy},
	}
}

// Annotated returns object with annotations, which an apply cannot remove: one that is nil becomes empty.
func Annotated(object, annotations map[string]any) map[string]any {
	if len(annotations) == 0 {
		return object
	}
	texts := map[string]any{}
	for key, value := range annotations {
		texts[key] = value
		if value == nil {
			texts[key] = ""
		}
	}
	object["metadata"].(map[string]any)["annotations"] = texts
	return object
}

// RollbackPatch is a merge patch that gives changed the configuration and the records of before.
func RollbackPatch(changed, before *configv1alpha1.CredentialIssuer) (map[string]any, error) {
	annotations := map[string]any{}
	for _, key := range []string{UndoAnnotation, RotationAnnotation} {
		was, there := before.Annotations[key]
		now, stays := changed.Annotations[key]
		switch {
		case there && was != now:
			annotations[key] = was
		case !there && stays:
			annotations[key] = nil
		}
	}
	return MergePatch(changed, TargetOf(before.Spec.ImpersonationProxy), annotations)
}
