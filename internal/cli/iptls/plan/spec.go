package plan

import (
	"cmp"
	"encoding/base64"
	"fmt"
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
func OrNone(text string) string {
	return cmp.Or(text, "(none)")
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
