package apiservice

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	// announcement is how long a new CA is in the APIServices before it signs, so that every API server trusts it by
	// then.
	announcement = 5 * time.Minute
	// caLifetimes is the lifetime of a CA as a multiple of that of a certificate.
	caLifetimes = 4
	// caName is the common name of the CA, the same as in upstream Pinniped.
	caName = "Pinniped Aggregation CA"

	maxRequeue = time.Hour // in case the clock is changed
	minRequeue = time.Second
)

// The keys of the Secret. The first four are those of upstream Pinniped, so its Secret can be reused.
const (
	keyCACertificate     = "caCertificate"
	keyCAKey             = "caCertificatePrivateKey"
	keyCertificate       = "tlsCertificateChain"
	keyPrivateKey        = "tlsPrivateKey"
	keyNextCACertificate = "nextCACertificate" // trusted, but does not sign yet
	keyNextCAKey         = "nextCACertificatePrivateKey"
	keyPreviousCAs       = "previousCACertificates" // still trusted
)

// policy is the policy of the Secret with the serving certificate of the aggregated APIs and its CA. Only the API
// server trusts the CA, through the APIServices, so the CA is renewed like the certificate.
func policy(dnsNames []string, life time.Duration) issuedcert.Policy {
	return issuedcert.Policy{
		Name: "serving certificate",
		CA: &issuedcert.CAPolicy{
			CommonName: caName, Life: caLifetimes * life,
			Keys: issuedcert.Keys{Certificate: keyCACertificate, PrivateKey: keyCAKey},
			Succession: &issuedcert.Succession{
				Previous:     keyPreviousCAs,
				Announcement: announcement,
				Next:         issuedcert.Keys{Certificate: keyNextCACertificate, PrivateKey: keyNextCAKey},
			},
		},
		Certificate: &issuedcert.CertificatePolicy{
			Names: certs.SANs{DNSNames: dnsNames}, MoreNames: true, Life: life,
			Keys: issuedcert.Keys{Certificate: keyCertificate, PrivateKey: keyPrivateKey},
		},
	}
}

// requeueAfter returns how long the next check of the Secret can wait. state has no verdict at now.
func requeueAfter(state *issuedcert.State, now time.Time) time.Duration {
	return min(max(state.Due().Sub(now), minRequeue), maxRequeue)
}
