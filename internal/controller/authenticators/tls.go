package authenticators

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

// maxBundleSize is far above any real CA bundle; parsing takes memory.
const maxBundleSize = 1 << 20

// origin is the content of the Secret or ConfigMap that a spec names.
type origin struct {
	name       types.NamespacedName
	found      bool
	secretType corev1.SecretType // of a Secret
	value      []byte
	hasKey     bool
}

// fetchSource reads the source of the CA bundle, or returns nil if the spec names none. An error says nothing about the
// spec.
func (r *Reconciler) fetchSource(ctx context.Context, spec *authenticationv1alpha1.TLSSpec) (*origin, error) {
	if spec == nil || spec.CertificateAuthorityDataSource == nil {
		return nil, nil
	}
	from := spec.CertificateAuthorityDataSource
	s := &origin{name: types.NamespacedName{Namespace: r.Namespace, Name: from.Name}}
	switch from.Kind {
	case authenticationv1alpha1.CertificateAuthorityDataSourceKindSecret:
		secret, found, err := r.Secrets.Get(ctx, s.name)
		if err != nil {
			return nil, err
		}
		if s.found = found; found {
			s.secretType = secret.Type
			s.value, s.hasKey = secret.Data[from.Key]
		}
	case authenticationv1alpha1.CertificateAuthorityDataSourceKindConfigMap:
		configMap, found, err := r.ConfigMaps.Get(ctx, s.name)
		if err != nil {
			return nil, err
		}
		if s.found = found; found {
			var text string
			text, s.hasKey = configMap.Data[from.Key]
			s.value = []byte(text)
		}
	}
	return s, nil
}

// CABundle returns the CA bundle (PEM) of an authenticator's spec, or nil for the system roots. It returns an error if
// the bundle is unreadable or invalid.
func (r *Reconciler) CABundle(ctx context.Context, spec *authenticationv1alpha1.TLSSpec) ([]byte, error) {
	from, err := r.fetchSource(ctx, spec)
	if err != nil {
		return nil, err
	}
	bundle, condition := checkTLS(spec, from)
	if condition.Status != metav1.ConditionTrue {
		return nil, errors.New(condition.Message)
	}
	return bundle, nil
}

// checkTLS returns the CA bundle and the condition TLSConfigurationValid. nil means the system roots.
func checkTLS(spec *authenticationv1alpha1.TLSSpec, from *origin) ([]byte, metav1.Condition) {
	switch {
	case spec == nil || spec.CertificateAuthorityData == "" && spec.CertificateAuthorityDataSource == nil:
		return nil, Good(TypeTLS, messageTLSSystemRoots)
	case spec.CertificateAuthorityData != "" && spec.CertificateAuthorityDataSource != nil:
		return nil, invalidTLS(
			"spec.tls is invalid: both tls.certificateAuthorityDataSource and tls.certificateAuthorityData provided",
		)
	case spec.CertificateAuthorityDataSource != nil:
		return checkSource(spec.CertificateAuthorityDataSource, from)
	}
	const field = "spec.tls.certificateAuthorityData is invalid: "
	bundle, err := base64.StdEncoding.DecodeString(spec.CertificateAuthorityData)
	if err != nil {
		return nil, invalidTLS(field + err.Error())
	}
	if !isBundle(bundle) {
		return nil, invalidTLS(fmt.Sprintf(field+"no base64-encoded PEM certificates found in %d bytes of data %s",
			len(spec.CertificateAuthorityData), messagePEMMustBeginWith))
	}
	return bundle, Good(TypeTLS, messageTLSBundle)
}

func checkSource(
	spec *authenticationv1alpha1.CertificateAuthorityDataSourceSpec,
	from *origin,
) ([]byte, metav1.Condition) {
	invalid := func(format string, args ...any) ([]byte, metav1.Condition) {
		return nil, invalidTLS("spec.tls.certificateAuthorityDataSource is invalid: " + fmt.Sprintf(format, args...))
	}
	kind := "secret"
	switch spec.Kind {
	case authenticationv1alpha1.CertificateAuthorityDataSourceKindSecret:
	case authenticationv1alpha1.CertificateAuthorityDataSourceKindConfigMap:
		kind = "configmap"
	default:
		return invalid("unsupported CA bundle source kind: %s", spec.Kind)
	}
	usable := from.secretType == corev1.SecretTypeOpaque || from.secretType == corev1.SecretTypeTLS ||
		from.secretType == ""
	switch {
	case !from.found:
		return invalid("failed to get %s %q: %s %q not found", kind, from.name, kind, from.name.Name)
	case !usable:
		return invalid("%s %q of type %q cannot be used as a certificate authority data source",
			kind, from.name, from.secretType)
	case !from.hasKey:
		return invalid("key %q not found in %s %q", spec.Key, kind, from.name)
	case len(from.value) == 0:
		return invalid("key %q has empty value in %s %q", spec.Key, kind, from.name)
	case !isBundle(from.value):
		return invalid("key %q with %d bytes of data in %s %q is not a PEM-encoded certificate %s",
			spec.Key, len(from.value), kind, from.name, messagePEMMustBeginWith)
	}
	return from.value, Good(TypeTLS, messageTLSBundle)
}

func invalidTLS(message string) metav1.Condition { return Bad(TypeTLS, reasonTLS, message) }

func isBundle(bundle []byte) bool {
	return len(bundle) <= maxBundleSize && x509.NewCertPool().AppendCertsFromPEM(bundle)
}
