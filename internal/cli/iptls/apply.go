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

// rollbackObject returns what is applied to changed so that the fields which the command changed are as in before.
func rollbackObject(changed, before *configv1alpha1.CredentialIssuer, req request) map[string]any {
	object := applyObject(changed, *before.Spec.ImpersonationProxy, req)
	proxy := object["spec"].(map[string]any)["impersonationProxy"].(map[string]any)
	if before.Spec.ImpersonationProxy.ExternalEndpoint == "" {
		delete(proxy, "externalEndpoint") // ours alone, so that leaving it out removes it
	}
	return object
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
	paths := map[string][]string{
		fieldSecret: tlsPath(), fieldBundle: tlsPath(), fieldVerification: tlsPath(),
		fieldEndpoint: endpointPath(), fieldLoadBalancerIP: loadBalancerIPPath(),
	}
	var managers []string
	for _, entry := range issuer.ManagedFields {
		person := entry.Operation == metav1.ManagedFieldsOperationUpdate && strings.HasPrefix(entry.Manager, "kubectl-")
		if entry.Manager == fieldManager || person || slices.Contains(managers, entry.Manager) {
			continue
		}
		for _, change := range changes {
			if entryOwns(entry, paths[change.Field]) {
				managers = append(managers, entry.Manager)
				break
			}
		}
	}
	return managers
}
