package plan

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
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
			Field: FieldBundle, From: DescribeBundle(before.CertificateAuthorityData),
			To: DescribeBundle(after.CertificateAuthorityData),
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
