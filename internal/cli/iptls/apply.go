package iptls

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// fieldManager is the name under which the CLI owns fields.
const fieldManager = "pinniped-cli"

// paths of the fields that the command may own.
func tlsPath() []string      { return []string{"spec", "impersonationProxy", "tls"} }
func endpointPath() []string { return []string{"spec", "impersonationProxy", "externalEndpoint"} }
func loadBalancerIPPath() []string {
	return []string{"spec", "impersonationProxy", "service", "loadBalancerIP"}
}

// applyObject returns what is applied so that issuer gets the wanted spec: the tls block, and the fields that the flags
// named. What an earlier run of ours owns is applied again with its value, as server-side apply takes leaving out for
// removing. The resourceVersion makes the API server refuse when the object has changed since it was read.
func applyObject(issuer *configv1alpha1.CredentialIssuer, wanted configv1alpha1.ImpersonationProxySpec, req request) map[string]any {
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
	if req.endpoint != nil || ownsField(issuer, endpointPath()) && wanted.ExternalEndpoint != "" {
		proxy["externalEndpoint"] = wanted.ExternalEndpoint
	}
	if ip := wanted.Service.LoadBalancerIP; ip != "" && (req.loadBalancerIP != nil || ownsField(issuer, loadBalancerIPPath())) {
		proxy["service"] = map[string]any{"loadBalancerIP": ip}
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": issuer.ResourceVersion},
		"spec":     map[string]any{"impersonationProxy": proxy},
	}
}

// annotated returns object with annotations, which an apply cannot remove: one that is nil becomes empty.
func annotated(object, annotations map[string]any) map[string]any {
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

// rollbackPatch is a merge patch that gives changed the configuration and the records of before.
func rollbackPatch(changed, before *configv1alpha1.CredentialIssuer) (map[string]any, error) {
	annotations := map[string]any{}
	for _, key := range []string{undoAnnotation, rotationAnnotation} {
		was, there := before.Annotations[key]
		now, stays := changed.Annotations[key]
		switch {
		case there && was != now:
			annotations[key] = was
		case !there && stays:
			annotations[key] = nil
		}
	}
	return mergePatch(changed, targetOf(before.Spec.ImpersonationProxy), annotations)
}

// ownsField says whether our field manager owns the field.
func ownsField(issuer *configv1alpha1.CredentialIssuer, path []string) bool {
	return slices.ContainsFunc(issuer.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == fieldManager && entryOwns(entry, path)
	})
}

func entryOwns(entry metav1.ManagedFieldsEntry, path []string) bool {
	if entry.FieldsV1 == nil || entry.Subresource != "" {
		return false
	}
	var fields map[string]any
	if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
		return false
	}
	for _, part := range path {
		next, ok := fields["f:"+part].(map[string]any)
		if !ok {
			return false
		}
		fields = next
	}
	return true
}

// otherManagers returns who else declares what the changed fields are to be, and may put them back: tools that apply
// (GitOps), and programs. A person with kubectl edit is not meant.
func otherManagers(issuer *configv1alpha1.CredentialIssuer, changes []Change) []string {
	var managers []string
	for _, entry := range issuer.ManagedFields {
		person := entry.Operation == metav1.ManagedFieldsOperationUpdate && strings.HasPrefix(entry.Manager, "kubectl-")
		if entry.Manager == fieldManager || person || slices.Contains(managers, entry.Manager) {
			continue
		}
		for _, change := range changes {
			if !change.ofSecret() && entryOwns(entry, pathOf(change.Field)) {
				managers = append(managers, entry.Manager)
				break
			}
		}
	}
	return managers
}

// managersOf returns who, besides us, manages one of the fields, a person's tools included.
func managersOf(issuer *configv1alpha1.CredentialIssuer, fields []string) []string {
	var managers []string
	for _, entry := range issuer.ManagedFields {
		if entry.Manager == fieldManager || slices.Contains(managers, entry.Manager) {
			continue
		}
		if slices.ContainsFunc(fields, func(field string) bool { return entryOwns(entry, pathOf(field)) }) {
			managers = append(managers, entry.Manager)
		}
	}
	return managers
}

func pathOf(field string) []string {
	switch field {
	case fieldEndpoint:
		return endpointPath()
	case fieldLoadBalancerIP:
		return loadBalancerIPPath()
	default:
		return tlsPath()
	}
}
