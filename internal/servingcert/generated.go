package servingcert

import (
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// How long generated certificates live. The CA is in kubeconfigs, so it is kept for good; the serving certificate is not, so it is
// renewed often enough that renewal is nothing special.
const (
	GeneratedCATTL      = 100 * 365 * 24 * time.Hour
	GeneratedServingTTL = 365*24*time.Hour - certs.Backdate

	generatedCAName = "Pinniped Impersonation Proxy Serving CA"
)

// Keys of the Secret that holds the generated serving CA.
const (
	caKeyKey = "ca.key"
)

// Plan says what is to be done about a generated object: nothing when Reason is empty, else to make it anew.
type Plan struct {
	Reason  string // one of the CamelCase reasons below
	Message string
}

// ReasonExpired is the one reason to make a CA anew for which the old one is of no use.
const ReasonExpired = "Expired"

// Needed reports whether the object is to be made anew.
func (p Plan) Needed() bool { return p.Reason != "" }

// PlanCA reads the generated serving CA from its Secret (nil when it does not exist), or says why it is to be made anew.
func PlanCA(secret *corev1.Secret, now time.Time) (*certs.CA, Plan) {
	if secret == nil {
		return nil, Plan{"Missing", "there is no serving CA yet"}
	}
	ca, err := certs.LoadCA(secret.Data[CACertKey], secret.Data[caKeyKey])
	if err != nil {
		return nil, Plan{"Damaged", err.Error()}
	}
	if now.After(ca.Certificate().NotAfter) {
		return nil, Plan{ReasonExpired, fmt.Sprintf("the serving CA expired at %s", ca.Certificate().NotAfter.Format(time.RFC3339))}
	}
	return ca, Plan{}
}

// NewCA makes a serving CA.
func NewCA(now time.Time) (*certs.CA, error) {
	return certs.NewCA(generatedCAName, now, GeneratedCATTL)
}

// CAData returns the content of the Secret that holds ca.
func CAData(ca *certs.CA) (map[string][]byte, error) {
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{CACertKey: ca.CertPEM(), caKeyKey: key}, nil
}

// PlanServing reads the generated serving certificate from its Secret (nil when it does not exist), or says why it is to be
// made anew: the first of missing, unreadable, not of this CA, for other names, or two thirds of its life gone.
// When only its age speaks against it, the certificate is returned as well: it can be served until its successor is there.
func PlanServing(secret *corev1.Secret, ca *certs.CA, names certs.SANs, now time.Time) (*Material, Plan) {
	if secret == nil {
		return nil, Plan{"Missing", "there is no generated serving certificate yet"}
	}
	certificate, err := keyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, Plan{"Damaged", err.Error()}
	}
	leaf := certificate.Leaf
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now}); err != nil {
		return nil, Plan{"NotVerified", err.Error()}
	}
	if !sameNames(leaf, names) {
		return nil, Plan{"SANMismatch", fmt.Sprintf("the generated serving certificate is for %s, not for %s",
			describe(leaf.DNSNames, leaf.IPAddresses), describe(names.DNSNames, names.IPAddresses))}
	}
	material := &Material{
		Certificate: certificate,
		Source:      SourceGenerated,
		Secret:      types.NamespacedName{Namespace: secret.Namespace, Name: secret.Name},
		Bundle:      ca.CertPEM(),
	}
	if now.After(RenewAt(leaf)) {
		return material, Plan{"Expiring", fmt.Sprintf("two thirds of the generated serving certificate's life are over; it ends at %s",
			leaf.NotAfter.Format(time.RFC3339))}
	}
	return material, Plan{}
}

// Generated says whether the certificate in secret was issued by the generated CA in caSecret, whatever its names and dates are.
func Generated(secret, caSecret *corev1.Secret) bool {
	ca, err := certs.LoadCA(caSecret.Data[CACertKey], caSecret.Data[caKeyKey])
	if err != nil {
		return false
	}
	certificate, err := keyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	return err == nil && certificate.Leaf.CheckSignatureFrom(ca.Certificate()) == nil
}

// RenewAt returns when two thirds of a certificate's life are over.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 3 * 2)
}

func sameNames(leaf *x509.Certificate, names certs.SANs) bool {
	return slices.Equal(sorted(leaf.DNSNames), sorted(names.DNSNames)) &&
		slices.Equal(sorted(texts(leaf.IPAddresses)), sorted(texts(names.IPAddresses)))
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

func texts(ips []net.IP) []string {
	list := make([]string, 0, len(ips))
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return list
}

func describe(dnsNames []string, ips []net.IP) string {
	return fmt.Sprintf("%q", append(slices.Clone(dnsNames), texts(ips)...))
}
