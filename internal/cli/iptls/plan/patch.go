package plan

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// FieldManager is the CLI's field manager.
const FieldManager = "pinniped-cli"

// Paths of the fields that the commands may own.
func tlsPath() []string { return []string{"spec", "impersonationProxy", "tls"} }

func endpointPath() []string    { return []string{"spec", "impersonationProxy", "externalEndpoint"} }
func modePath() []string        { return []string{"spec", "impersonationProxy", "mode"} }
func serviceTypePath() []string { return []string{"spec", "impersonationProxy", "service", "type"} }
func loadBalancerIPPath() []string {
	return []string{"spec", "impersonationProxy", "service", "loadBalancerIP"}
}

// ApplyObject returns the object for a server-side apply of the wanted spec: the tls block, and the fields that flags
// name. It repeats fields that our field manager owns, because server-side apply removes owned fields that are left
// out. With resourceVersion, the API server returns a conflict if the object has changed since.
func ApplyObject(issuer *configv1alpha1.CredentialIssuer, wanted configv1alpha1.ImpersonationProxySpec,
	req Request,
) map[string]any {
	current := issuer.Spec.ImpersonationProxy
	proxy := map[string]any{}
	if wanted.TLS != nil {
		tls := map[string]any{"secretName": wanted.TLS.SecretName} // only "ip-tls set" uses apply
		if wanted.TLS.Verification != "" {
			tls["verification"] = string(wanted.TLS.Verification)
		}
		// An empty value replaces that of another manager.
		if data := wanted.TLS.CertificateAuthorityData; data != "" || current.TLS != nil &&
			current.TLS.CertificateAuthorityData != "" {
			tls["certificateAuthorityData"] = data
		}
		if from := wanted.TLS.CertificateAuthorityDataSource; from != nil {
			source := map[string]any{"kind": string(from.Kind), "name": from.Name}
			if from.Key != "" {
				source["key"] = from.Key
			}
			tls["certificateAuthorityDataSource"] = source
		}
		if wanted.TLS.CATransition != "" {
			tls["caTransition"] = string(wanted.TLS.CATransition)
		}
		if after := wanted.TLS.ActivateAfter; after != nil {
			tls["activateAfter"] = after.Duration.String()
		}
		proxy["tls"] = tls
	}
	if req.Endpoint != nil || ownsField(issuer, endpointPath()) && wanted.ExternalEndpoint != "" {
		proxy["externalEndpoint"] = wanted.ExternalEndpoint
	}
	if req.Mode != "" || ownsField(issuer, modePath()) {
		proxy["mode"] = string(wanted.Mode)
	}
	service := map[string]any{}
	if ip := wanted.Service.LoadBalancerIP; ip != "" &&
		(req.LoadBalancerIP != nil || ownsField(issuer, loadBalancerIPPath())) {
		service["loadBalancerIP"] = ip
	}
	if kind := wanted.Service.Type; kind != "" && (req.ServiceType != "" || ownsField(issuer, serviceTypePath())) {
		service["type"] = string(kind)
	}
	if len(service) > 0 {
		proxy["service"] = service
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": issuer.ResourceVersion},
		"spec":     map[string]any{"impersonationProxy": proxy},
	}
}

// ownsField reports whether our field manager owns the field.
func ownsField(issuer *configv1alpha1.CredentialIssuer, path []string) bool {
	return slices.ContainsFunc(issuer.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == FieldManager && EntryOwns(entry, path)
	})
}

// EntryOwns reports whether an entry of managedFields has the field at path. Entries of the status do not count.
func EntryOwns(entry metav1.ManagedFieldsEntry, path []string) bool {
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

// OtherManagers returns the field managers that may restore the changed fields: tools that apply manifests, and
// programs, but not kubectl edit.
func OtherManagers(issuer *configv1alpha1.CredentialIssuer, changes []FieldChange) []string {
	var managers []string
	for _, entry := range issuer.ManagedFields {
		person := entry.Operation == metav1.ManagedFieldsOperationUpdate && strings.HasPrefix(entry.Manager, "kubectl-")
		if entry.Manager == FieldManager || person || slices.Contains(managers, entry.Manager) {
			continue
		}
		for _, change := range changes {
			if !change.OfSecret() && EntryOwns(entry, pathOf(change.Field)) {
				managers = append(managers, entry.Manager)
				break
			}
		}
	}
	return managers
}

func pathOf(field string) []string {
	switch field {
	case fieldEndpoint:
		return endpointPath()
	case fieldMode:
		return modePath()
	case fieldServiceType:
		return serviceTypePath()
	case fieldLoadBalancerIP:
		return loadBalancerIPPath()
	default:
		return tlsPath()
	}
}
