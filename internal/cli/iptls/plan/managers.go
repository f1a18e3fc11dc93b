package plan

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

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
