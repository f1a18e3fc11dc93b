package plan

import (
	"cmp"
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
	none := &configv1alpha1.ImpersonationProxyTLSSpec{}
	before, after := cmp.Or(from.TLS, none), cmp.Or(to.TLS, none)
	var changes []FieldChange
	add := func(field, old, changed string) {
		if old != changed {
			changes = append(changes, FieldChange{Field: field, From: old, To: changed})
		}
	}
	add(FieldSecret, before.SecretName, after.SecretName)
	if before.CertificateAuthorityData != after.CertificateAuthorityData { // bundles may share a description
		changes = append(changes, FieldChange{
			Field: FieldBundle, From: describeBundle(before.CertificateAuthorityData),
			To: describeBundle(after.CertificateAuthorityData),
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

func sourceText(tls *configv1alpha1.ImpersonationProxyTLSSpec) string {
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

// describeBundle describes a CA bundle in one line.
func describeBundle(data string) string {
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
func OrNone(text string) string { return cmp.Or(text, "(none)") }

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
	wanted.TLS, wanted.ExternalEndpoint = r.Spec.TLS.DeepCopy(), r.Spec.ExternalEndpoint
	wanted.Service.LoadBalancerIP = r.Spec.LoadBalancerIP
	wanted.Service.Type = cmp.Or(r.Spec.ServiceType, wanted.Service.Type)
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

// FieldManager is the CLI's field manager.
const FieldManager = "pinniped-cli"

// ApplyObject returns the object for a server-side apply of the wanted spec: the tls block, and the fields that flags
// name. It repeats fields that our field manager owns, because an apply removes owned fields that are left out.
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
	return patchOf(issuer, proxy, service)
}

// MergePatch returns a merge patch from issuer to the wanted configuration, regardless of field managers.
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
	set := func(in map[string]any, field, before, after string) {
		if before != after {
			in[field] = after
			if after == "" {
				in[field] = nil
			}
		}
	}
	set(proxy, "externalEndpoint", now.ExternalEndpoint, wanted.ExternalEndpoint)
	set(proxy, "mode", string(now.Mode), string(wanted.Mode))
	set(service, "loadBalancerIP", now.Service.LoadBalancerIP, wanted.Service.LoadBalancerIP)
	set(service, "type", string(ServiceType(now)), string(ServiceType(&wanted)))
	return patchOf(issuer, proxy, service), nil
}

// patchOf returns a patch of issuer. resourceVersion makes the API server refuse it if the object has changed since.
func patchOf(issuer *configv1alpha1.CredentialIssuer, proxy, service map[string]any) map[string]any {
	if len(service) > 0 {
		proxy["service"] = service
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": issuer.ResourceVersion},
		"spec":     map[string]any{"impersonationProxy": proxy},
	}
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

// OtherManagers returns the field managers that may restore the changed fields: programs, but not kubectl edit.
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
