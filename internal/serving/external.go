package serving

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// CACertKey is the key of the CA bundle in a TLS Secret, as cert-manager writes it.
const CACertKey = "ca.crt"

// Refusal says why a certificate is not served. Its Finding is Pending if there is nothing to check yet, because the
// Secret is missing or incomplete.
type Refusal struct {
	Finding certs.Finding
}

// Error returns the code, the message and the hint in one line.
func (r *Refusal) Error() string { return Sentence(r.Finding) }

// Sentence returns a finding's code, message and hint in one line, for a status, an event or a log message.
func Sentence(f certs.Finding) string {
	text := fmt.Sprintf("%s: %s", f.Code, f.Message)
	if f.Hint != "" {
		text += " (" + f.Hint + ")"
	}
	return text
}

// Evaluation is the result of checking a certificate: a Certificate that can be served, perhaps with warnings, or a
// Refusal.
type Evaluation struct {
	Certificate *Certificate
	Warnings    []certs.Finding
	Refusal     *Refusal
	Further     []certs.Finding // errors other than Refusal that would also refuse it
	// Report is the result of the checks, Bundle the CA bundle that goes with the certificate.
	Report certs.Report
	Bundle []byte
	// Waiting, if set, is the requested certificate. Certificate is then the one in service.
	Waiting *Waiting

	// tolerated are the Warnings with which Certificate is served only if there is nothing better to serve.
	tolerated []certs.Finding
	wanted    []certs.Name // the names that clients use
}

// Generated returns the evaluation of a generated certificate for host, the endpoint of clients, and other names.
func Generated(certificate *Certificate, host string, names []certs.Name) Evaluation {
	return Evaluation{Certificate: certificate, wanted: append([]certs.Name{{Value: host}}, names...)}
}

// hintWarn says how to serve a certificate that does not cover a name.
const hintWarn = "to serve it anyway, set spec.impersonationProxy.tls.verification to Warn"

// serves reports whether the certificate is valid now and covers these names, except advisory ones.
func (m *Certificate) serves(wanted []certs.Name, now time.Time) bool {
	leaf := m.Certificate.Leaf
	if now.Before(leaf.NotBefore) || !now.Before(leaf.NotAfter) {
		return false
	}
	return !slices.ContainsFunc(wanted, func(name certs.Name) bool {
		return !name.Advisory && leaf.VerifyHostname(name.Value) != nil
	})
}

// ExternalInput is the input of External.
type ExternalInput struct {
	Name   types.NamespacedName // of the Secret that the spec names
	Secret *corev1.Secret       // nil if it does not exist
	// Delegated is true for a Secret in another namespace. The caller has checked that its use is permitted.
	Delegated bool
	Spec      configv1alpha1.ImpersonationProxyTLSSpec
	// Source is the object of certificateAuthorityDataSource in Spec; nil if there is none.
	Source *BundleSource
	// Endpoint is spec.impersonationProxy.externalEndpoint. Names are all other names that clients use.
	Endpoint string
	Names    []certs.Name
	Now      time.Time

	// For the CLI only: its flags and the API server's clock. See certs.Input.
	Allow         []certs.Code
	Sources       certs.Sources
	ServerTime    time.Time
	ExpiresWithin time.Duration
}

// Checks returns the input of the checks. Secret must not be nil.
func (in ExternalInput) Checks() (certs.Input, error) {
	bundle, err := Bundle(in.Spec, in.Secret, in.Source)
	return certs.Input{
		CertPEM: in.Secret.Data[corev1.TLSCertKey], KeyPEM: in.Secret.Data[corev1.TLSPrivateKeyKey],
		SecretType: string(in.Secret.Type), Bundle: bundle, Endpoint: in.Endpoint, Names: in.Names, Now: in.Now,
		Allow: in.Allow, Sources: in.Sources, ServerTime: in.ServerTime, ExpiresWithin: in.ExpiresWithin,
	}, err
}

// External runs all checks of pkg/certs on the certificate in an administrator's Secret. An error refuses the
// certificate, with the exceptions in outcomeOf.
func External(in ExternalInput) Evaluation {
	if in.Secret == nil {
		missing := certs.NewFinding(certs.SecretNotFound,
			fmt.Sprintf("spec.impersonationProxy.tls.secretName: Secret %q does not exist", in.Name))
		missing.Pending = true
		return refuse(missing)
	}
	checks, err := in.Checks()
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return refuse(refusal.Finding)
	}
	if err != nil {
		return refuse(certs.NewFinding(certs.NotACertificate, err.Error()))
	}
	report, bundle := certs.Check(checks), checks.Bundle
	evaluation := Evaluation{Warnings: report.Warnings(), wanted: in.Names, Report: report, Bundle: bundle}
	if host, _, err := certs.ParseEndpoint(in.Endpoint); err == nil {
		evaluation.wanted = append([]certs.Name{{Value: host}}, in.Names...)
	}
	for _, finding := range report.Errors() {
		switch outcomeOf(finding.Code, in.Spec.Verification, len(bundle) > 0) {
		case refused:
			if evaluation.Refusal == nil {
				evaluation.Refusal = &Refusal{Finding: finding}
			} else {
				evaluation.Further = append(evaluation.Further, finding)
			}
		case warned:
			evaluation.Warnings = append(evaluation.Warnings, finding)
		case tolerated:
			evaluation.Warnings = append(evaluation.Warnings, finding)
			evaluation.tolerated = append(evaluation.tolerated, finding)
		case passed:
		}
	}
	if evaluation.Refusal != nil {
		return evaluation
	}
	certificate, err := keyPair(checks.CertPEM, checks.KeyPEM)
	if err != nil {
		return refuse(certs.NewFinding(certs.KeyMismatch, err.Error()))
	}
	evaluation.Certificate = &Certificate{
		Certificate: certificate, Source: SourceExternal, Secret: in.Name, Bundle: published(bundle), Delegated: in.Delegated,
	}
	return evaluation
}

// published returns the bundle as it is published: only its certificates, encoded again, because the text around them
// may contain a private key. A bundle without certificates is returned unchanged: an empty one would mean system roots.
func published(bundle []byte) []byte {
	if clean := certs.UnionBundle(bundle); len(clean) > 0 {
		return clean
	}
	return bundle
}

// BundleSource is the content of the object that spec.impersonationProxy.tls.certificateAuthorityDataSource names.
type BundleSource struct {
	// Data is its content; a ClusterTrustBundle's is under "". It is nil if the object does not exist.
	Data map[string][]byte
	// Err says why the object could not be read.
	Err error
}

// ReadSource reads the object that certificateAuthorityDataSource names. It returns nil if tls names none. Each
// function returns nil if the object does not exist.
func ReadSource(
	tls *configv1alpha1.ImpersonationProxyTLSSpec,
	configMap func(name string) (*corev1.ConfigMap, error),
	secret func(name string) (*corev1.Secret, error),
	clusterTrustBundle func(name string) (pem *string, err error),
) *BundleSource {
	if tls == nil || tls.CertificateAuthorityDataSource == nil {
		return nil
	}
	read, name := &BundleSource{}, tls.CertificateAuthorityDataSource.Name
	switch tls.CertificateAuthorityDataSource.Kind {
	case configv1alpha1.SourceConfigMap:
		var found *corev1.ConfigMap
		if found, read.Err = configMap(name); found != nil {
			read.Data = map[string][]byte{}
			for key, value := range found.Data {
				read.Data[key] = []byte(value)
			}
		}
	case configv1alpha1.SourceSecret:
		var found *corev1.Secret
		if found, read.Err = secret(name); found != nil {
			read.Data = found.Data
		}
	case configv1alpha1.SourceClusterTrustBundle:
		var found *string
		if found, read.Err = clusterTrustBundle(name); found != nil {
			read.Data = map[string][]byte{"": []byte(*found)}
		}
	}
	return read
}

// bundle returns the CA bundle, or a Refusal that says what is wrong with the source.
func (s *BundleSource) bundle(from configv1alpha1.CertificateAuthorityDataSourceSpec) ([]byte, error) {
	problem := ""
	switch {
	case s == nil: // the caller may not have permission to read it
		problem = "was not read"
	case s.Err != nil:
		problem = fmt.Sprintf("cannot be read: %v", s.Err)
	case s.Data == nil:
		problem = "does not exist"
	case len(strings.TrimSpace(string(s.Data[from.Key]))) == 0:
		problem = "is empty"
	default:
		return s.Data[from.Key], nil
	}
	finding := certs.NewFinding(certs.BundleNotFound, fmt.Sprintf(
		"spec.impersonationProxy.tls.certificateAuthorityDataSource: %s %s", from, problem))
	finding.Pending = true
	return nil, &Refusal{Finding: finding}
}

// Bundle returns the CA bundle (PEM) that is published with an external certificate: from the spec's source, else from
// the spec, else from the Secret's ca.crt, else none. It returns an error if the spec's is not base64, and a Refusal if
// the source has none.
func Bundle(
	spec configv1alpha1.ImpersonationProxyTLSSpec, secret *corev1.Secret, source *BundleSource,
) ([]byte, error) {
	if from := spec.CertificateAuthorityDataSource; from != nil {
		return source.bundle(*from)
	}
	if spec.CertificateAuthorityData == "" {
		return secret.Data[CACertKey], nil
	}
	bundle, err := base64.StdEncoding.DecodeString(strings.TrimSpace(spec.CertificateAuthorityData))
	if err != nil {
		return nil, fmt.Errorf("decoding spec.impersonationProxy.tls.certificateAuthorityData: %w", err)
	}
	return bundle, nil
}

// outcome is what the agent does with a certificate for which a check has failed.
type outcome int

const (
	refused   outcome = iota
	warned            // served, with a warning in the status
	tolerated         // like warned, unless the certificate in service is better: see Evaluate
	passed            // this process cannot check it
)

// outcomeOf returns the outcome of a failed check. Almost all of them refuse.
func outcomeOf(code certs.Code, verification configv1alpha1.TLSVerification, published bool) outcome {
	switch code { //nolint:exhaustive // all others refuse
	case certs.ExpiresSoon:
		// The certificate in service probably expires no later, and this one is likely to be renewed in time.
		return warned
	case certs.NameNotCovered:
		switch verification {
		case configv1alpha1.VerificationWarn:
			return warned
		case configv1alpha1.VerificationEnforce:
		default:
			return tolerated
		}
	case certs.BundleDoesNotVerify, certs.ChainIncomplete:
		// Without a bundle, clients use their system roots, which the agent's image does not have.
		if !published {
			return passed
		}
	}
	return refused
}

func refuse(finding certs.Finding) Evaluation {
	return Evaluation{Refusal: &Refusal{Finding: finding}, Report: certs.Report{Findings: []certs.Finding{finding}}}
}

// keyPair parses a serving certificate. It always sets Leaf.
func keyPair(certPEM, keyPEM []byte) (tls.Certificate, error) {
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("loading the serving certificate: %w", err)
	}
	return certificate, nil
}
