package apiservice

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	// announcement is how long a new CA is in the APIServices before it signs, so that every API server has seen it
	// by then.
	announcement = 5 * time.Minute
	// caLifetimes is the lifetime of a CA, in lifetimes of a certificate.
	caLifetimes = 4
	// caName is the common name of the CA. It is Pinniped's.
	caName = "Pinniped Aggregation CA"

	maxRequeue = time.Hour // clocks jump
	minRequeue = time.Second
)

// The keys of the Secret. The first four are Pinniped's, whose Secret is taken over as it is.
const (
	keyCACertificate     = "caCertificate"
	keyCAKey             = "caCertificatePrivateKey"
	keyCertificate       = "tlsCertificateChain"
	keyPrivateKey        = "tlsPrivateKey"
	keyNextCACertificate = "nextCACertificate" // trusted, but nothing is signed by it yet
	keyNextCAKey         = "nextCACertificatePrivateKey"
	keyPreviousCAs       = "previousCACertificates" // still trusted
)

// policy is the policy of the Secret that holds the serving certificate of the aggregated APIs, and its CA. Only the
// API server knows the CA, and it is told of a new one. So the CA is renewed like the certificate.
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

// requeueAfter returns how long the next check of the Secret can wait. state was in order at now.
func requeueAfter(state *issuedcert.State, now time.Time) time.Duration {
	return min(max(state.Due().Sub(now), minRequeue), maxRequeue)
}
