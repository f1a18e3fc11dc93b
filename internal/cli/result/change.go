package result

import (
	"strings"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Change is the result of a command that changes what certificate is served. With --dry-run it is of kind Plan, and
// `ip-tls apply` takes it.
type Change struct {
	Head
	// Outcome is what was done.
	Outcome Outcome `json:"outcome"`
	// DryRun is set when nothing was really done.
	DryRun DryRun `json:"dryRun,omitempty"`
	// CredentialIssuer is its name; empty when files were refused before the cluster was asked.
	CredentialIssuer string `json:"credentialIssuer"`
	// Secret is the one that is configured, or that was until now; absent for the generated certificate.
	Secret *ObjectRef `json:"secret,omitempty"`
	// Certificate is what the checks have found out about the certificate.
	Certificate certs.Report `json:"certificate"`
	// CABundle is what clients get. It is absent when the agent has yet to make a CA.
	CABundle CABundle `json:"caBundle,omitzero"`
	// Changes are the fields that change.
	Changes []FieldChange `json:"changes"`
	// Endpoint and Addresses are what was seen while waiting.
	Endpoint   string    `json:"endpoint,omitempty"`
	Addresses  []Address `json:"addresses,omitempty"`
	Problems   []string  `json:"problems,omitempty"`
	RolledBack bool      `json:"rolledBack,omitempty"`
	// SwitchedOff is true when the proxy is off, so that nobody is served.
	SwitchedOff bool `json:"switchedOff,omitempty"`
	// Overwrites is another user's change that may not have taken effect yet, and that this one replaces.
	Overwrites *NotedChange `json:"overwrites,omitempty"`
	// Moved says what is no longer as it was when a plan was made.
	Moved []string `json:"moved,omitempty"`
	// Plan is what `ip-tls apply` goes by; absent when it was not a dry run.
	Plan *Plan `json:"plan,omitempty"`
}

// FieldChange is one field that changes. A CA bundle is described in it, not shown.
type FieldChange struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// SecretField begins the Field of a change in a Secret.
const SecretField = "secret/"

// OfSecret says whether it is a key of the Secret that changes.
func (c FieldChange) OfSecret() bool { return strings.HasPrefix(c.Field, SecretField) }

// Target holds the fields of the configuration that the commands change, as they are in the spec.
type Target struct {
	TLS              *configv1alpha1.ImpersonationProxyTLSSpec `json:"tls"`
	ExternalEndpoint string                                    `json:"externalEndpoint"`
	LoadBalancerIP   string                                    `json:"loadBalancerIP"`
	// Mode stays as it is when it is absent.
	Mode configv1alpha1.ImpersonationProxyMode `json:"mode,omitempty"`
}

// DryRun says who was asked in a dry run.
type DryRun string

// Enum lists the dry runs.
func (DryRun) Enum() []string { return []string{"client", "server"} }

// Plan is the part of a dry run's result that `ip-tls apply` reads: what is to be done, and the objects for which it
// was planned.
type Plan struct {
	// Command is the command whose dry run it is: "set", "unset", "undo" or "apply".
	Command string    `json:"command"`
	At      time.Time `json:"at"`
	// Namespace is the agent's.
	Namespace        string        `json:"namespace"`
	CredentialIssuer PlannedObject `json:"credentialIssuer"`
	// Secret holds the certificate; absent when the agent is to generate one.
	Secret *PlannedSecret `json:"secret,omitempty"`
	Wanted Target         `json:"wanted"`
	// CABundlePEM is what clients will be given, PEM; absent for their system roots, or for a CA that the agent makes.
	CABundlePEM string `json:"caBundlePEM,omitempty"`
	// Allow are the codes of errors that were let through.
	Allow []certs.Code `json:"allow,omitempty"`
	// CannotApply says why `ip-tls apply` refuses the plan; absent when it does not.
	CannotApply string `json:"cannotApply,omitempty"`
}

// PlannedObject is one object as it was when the plan was made.
type PlannedObject struct {
	Name            string `json:"name"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	Generation      int64  `json:"generation,omitempty"`
}

// PlannedSecret is a Secret as it was when the plan was made. No hash covers its key.
type PlannedSecret struct {
	PlannedObject `json:",inline"`
	// SHA256 is the fingerprint of the serving certificate.
	SHA256 string `json:"sha256"`
	// ContentSHA256 covers all of tls.crt and ca.crt.
	ContentSHA256 string `json:"contentSHA256"`
}
