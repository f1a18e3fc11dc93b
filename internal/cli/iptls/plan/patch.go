package plan

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// FieldManager is the CLI's field manager.
const FieldManager = "pinniped-cli"

// ApplyObject returns the object for a server-side apply of the wanted spec: the tls block, and the fields that flags
// name. It repeats fields that our field manager owns, because server-side apply removes owned fields that are left
// out. With resourceVersion, the API server returns a conflict if the object has changed since.
func ApplyObject(issuer *configv1alpha1.CredentialIssuer, wanted configv1alpha1.ImpersonationProxySpec,
	req Request,
) map[string]any {
	current := issuer.Spec.ImpersonationProxy
	proxy := map[string]any{}
	if wanted.TLS != nil {
		tls := struct {
			configv1alpha1.ImpersonationProxyTLSSpec
			CertificateAuthorityData *string `json:"certificateAuthorityData,omitempty"`
		}{ImpersonationProxyTLSSpec: *wanted.TLS}
		// An empty value replaces that of another manager.
		if data := wanted.TLS.CertificateAuthorityData; data != "" || current.TLS != nil &&
			current.TLS.CertificateAuthorityData != "" {
			tls.CertificateAuthorityData = &data
		}
		proxy["tls"] = tls
	}
	if req.Endpoint != nil || ownsField(issuer, fieldEndpoint) && wanted.ExternalEndpoint != "" {
		proxy["externalEndpoint"] = wanted.ExternalEndpoint
	}
	if req.Mode != "" || ownsField(issuer, fieldMode) {
		proxy["mode"] = string(wanted.Mode)
	}
	service := map[string]any{}
	if ip := wanted.Service.LoadBalancerIP; ip != "" &&
		(req.LoadBalancerIP != nil || ownsField(issuer, fieldLoadBalancerIP)) {
		service["loadBalancerIP"] = ip
	}
	if kind := wanted.Service.Type; kind != "" && (req.ServiceType != "" || ownsField(issuer, fieldServiceType)) {
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

// ownsField reports whether our field manager owns the field.
func ownsField(issuer *configv1alpha1.CredentialIssuer, field string) bool {
	return slices.ContainsFunc(issuer.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == FieldManager && EntryOwns(entry, strings.Split(field, ".")...)
	})
}

// EntryOwns reports whether an entry of managedFields has the field at path. Entries of the status do not count.
func EntryOwns(entry metav1.ManagedFieldsEntry, path ...string) bool {
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
		if slices.ContainsFunc(changes, func(change FieldChange) bool {
			if change.OfSecret() {
				return false
			}
			field := change.Field
			if strings.HasPrefix(field, fieldTLS+".") {
				field = fieldTLS // the block has one owner
			}
			return EntryOwns(entry, strings.Split(field, ".")...)
		}) {
			managers = append(managers, entry.Manager)
		}
	}
	return managers
}
