package status

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Result is what `ip-tls status` prints with `-o json` and `-o yaml`. Scripts rely on its fields.
type Result struct {
	CredentialIssuer string    `json:"credentialIssuer"`
	At               time.Time `json:"at"`
	// InEffect is true when what is configured is what the agent reports and every address presents.
	InEffect bool `json:"inEffect"`
	// Problems say why it is not, the most telling one first.
	Problems   []string          `json:"problems,omitempty"`
	Configured ConfiguredStatus  `json:"configured"`
	Agent      *AgentStatus      `json:"agent,omitempty"`
	Advertised *AdvertisedStatus `json:"advertised,omitempty"`
	// Rotation says where a rotation is that is under way.
	Rotation string `json:"rotation,omitempty"`
	// Certificate is the configured one as far as it can be read, else the one that is presented.
	Certificate *CertificateStatus `json:"certificate,omitempty"`
	RenewedBy   *session.Renewer   `json:"renewedBy,omitempty"`
	Replicas    *ReplicaStatus     `json:"replicas,omitempty"`
	// Addresses are what each address of the endpoint presents right now.
	Addresses []AddressStatus `json:"addresses,omitempty"`
	// Kubeconfigs are the contexts that lead to the endpoint.
	Kubeconfigs []KubeconfigStatus `json:"kubeconfigs,omitempty"`
	// NotKnown names what could not be found out, each with the reason.
	NotKnown []string `json:"notKnown,omitempty"`
}

// ConfiguredStatus is what the spec of the CredentialIssuer says.
type ConfiguredStatus struct {
	Mode string `json:"mode"`
	// Source is "Secret" or "Generated".
	Source       string                         `json:"source"`
	Secret       *plan.SecretRef                `json:"secret,omitempty"`
	Verification configv1alpha1.TLSVerification `json:"verification,omitempty"`
	// CABundle describes the bundle of the spec; empty when the Secret's or none is advertised.
	CABundle         string `json:"caBundle,omitempty"`
	ExternalEndpoint string `json:"externalEndpoint,omitempty"`
	LoadBalancerIP   string `json:"loadBalancerIP,omitempty"`
}

// AgentStatus is what the agent says about the impersonation proxy.
type AgentStatus struct {
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// AdvertisedStatus is what clients are told.
type AdvertisedStatus struct {
	Endpoint string `json:"endpoint"`
	// CABundle describes the CA bundle; empty when clients use their system roots.
	CABundle string `json:"caBundle"`
}

// CertificateStatus is one serving certificate.
type CertificateStatus struct {
	// From is "secret", "endpoint" or "agent": who has told.
	From        string    `json:"from"`
	SHA256      string    `json:"sha256"`
	DNSNames    []string  `json:"dnsNames,omitempty"`
	IPAddresses []string  `json:"ipAddresses,omitempty"`
	Issuer      string    `json:"issuer,omitempty"`
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
	// SecondsLeft is negative when it has expired.
	SecondsLeft int64 `json:"secondsLeft"`
}

// ReplicaStatus says how many replicas of the agent serve the same certificate, as the agent reports it.
type ReplicaStatus struct {
	Total   int32 `json:"total"`
	Serving int32 `json:"serving"`
	// SHA256 is the fingerprint of the certificate that the Serving replicas present. It differs from that of the
	// configured certificate while that one is refused or missing.
	SHA256 string `json:"sha256,omitempty"`
	// Others names the replicas that serve something else, each with the reason.
	Others []string `json:"others,omitempty"`
}

// AddressStatus is what one address presents.
type AddressStatus struct {
	Address  string     `json:"address"`
	SHA256   string     `json:"sha256,omitempty"`
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// Problem says why this is not what it should be; empty when all is well.
	Problem string `json:"problem,omitempty"`
	// Skipped is true when there is no route to the address from here, so that nothing is known about it.
	Skipped bool `json:"skipped,omitempty"`
}

// The values of KubeconfigStatus.Verdict.
const (
	kubeconfigWorks     = "works"
	kubeconfigOutdated  = "outdated"
	kubeconfigBroken    = "broken"
	kubeconfigWillBreak = "will break"
	kubeconfigNotKnown  = "not known"
)

// KubeconfigStatus is one context of a kubeconfig that leads to the endpoint.
type KubeconfigStatus struct {
	File    string `json:"file"`
	Context string `json:"context"`
	// Verdict is "works", "outdated" (it works, with another CA bundle than the one that is advertised), "will break"
	// (it does not verify what is configured), "broken" (it does not verify what is presented now) or "not known".
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
}
