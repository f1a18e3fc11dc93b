package certs

// Code names a check. Codes are stable: they appear in the CredentialIssuer's status, in events and in scripts.
type Code string

// The codes, in the order in which they are checked.
const (
	SecretNotFound       Code = "SecretNotFound"
	SecretNotPermitted   Code = "SecretNotPermitted"
	SecretIncomplete     Code = "SecretIncomplete"
	TooLarge             Code = "TooLarge"
	NotACertificate      Code = "NotACertificate"
	BadSerial            Code = "BadSerial"
	KeyMismatch          Code = "KeyMismatch"
	KeyEncrypted         Code = "KeyEncrypted"
	KeyUnreadable        Code = "KeyUnreadable"
	KeyIsCAKey           Code = "KeyIsCAKey"
	WeakKey              Code = "WeakKey"
	RSAOnlyClients       Code = "RSAOnlyClients"
	WeakSignature        Code = "WeakSignature"
	LeafIsCA             Code = "LeafIsCA"
	NoServerAuth         Code = "NoServerAuth"
	KeyUsage             Code = "KeyUsage"
	MustStaple           Code = "MustStaple"
	ClocksDiffer         Code = "ClocksDiffer"
	NotYetValid          Code = "NotYetValid"
	Expired              Code = "Expired"
	ExpiresSoon          Code = "ExpiresSoon"
	OutlivesIssuer       Code = "OutlivesIssuer"
	NoNames              Code = "NoNames"
	EndpointInvalid      Code = "EndpointInvalid"
	NameNotCovered       Code = "NameNotCovered"
	LoadBalancerIPUnused Code = "LoadBalancerIPUnused"
	ChainOrder           Code = "ChainOrder"
	ChainIncomplete      Code = "ChainIncomplete"
	ChainExtra           Code = "ChainExtra"
	IntermediateInvalid  Code = "IntermediateInvalid"
	BundleDoesNotVerify  Code = "BundleDoesNotVerify"
	BundleMember         Code = "BundleMember"
	BundleNotFound       Code = "BundleNotFound"
	BundleEmpty          Code = "BundleEmpty"
	OldClientsBreak      Code = "OldClientsBreak"
	StrictClients        Code = "StrictClients"
	HandshakeFailed      Code = "HandshakeFailed"
	EndpointUnreachable  Code = "EndpointUnreachable"
	EndpointServesOther  Code = "EndpointServesOther"
)

// Explanation is what `pinniped explain CODE` prints.
type Explanation struct {
	Code Code `json:"code"`
	// Severity is the usual one; a finding may be milder where the cause says so.
	Severity Severity `json:"severity"`
	// Allowable is true when `--allow CODE` can let such an error through.
	Allowable   bool   `json:"allowable"`
	Cause       string `json:"cause"`
	Consequence string `json:"consequence"`
	Fix         string `json:"fix"`
	Example     string `json:"example,omitempty"`
}

// Explain returns what is behind a code; ok is false for a code that does not exist.
func Explain(code Code) (explanation Explanation, ok bool) {
	for _, e := range catalogue() {
		if e.Code == code {
			e.Allowable = Allowable(code)
			return e, true
		}
	}
	return Explanation{}, false
}

// Codes returns every code, in the order in which they are checked.
func Codes() []Code {
	all := catalogue()
	codes := make([]Code, len(all))
	for i, e := range all {
		codes[i] = e.Code
	}
	return codes
}

// Allowable says whether an error with this code can be let through by name: it is one that the agent does not
// refuse, or does not if it is configured so. Anything else the agent keeps out of service whatever an administrator
// wants, so there is nothing to allow. A single finding may still not be allowed: what a published CA bundle does not
// verify, the agent refuses.
func Allowable(code Code) bool {
	switch code {
	case ExpiresSoon, NameNotCovered, ChainIncomplete, BundleDoesNotVerify, OldClientsBreak:
		return true
	default:
		return false
	}
}

func (c Code) severity() Severity {
	switch c {
	case LeafIsCA, MustStaple, ClocksDiffer, OutlivesIssuer, LoadBalancerIPUnused, ChainExtra, BundleMember,
		StrictClients:
		return SeverityWarning
	case BundleEmpty, RSAOnlyClients:
		return SeverityInfo
	case SecretNotFound, SecretNotPermitted, SecretIncomplete, TooLarge, NotACertificate, BadSerial, KeyMismatch,
		KeyEncrypted, KeyUnreadable, KeyIsCAKey, WeakKey, WeakSignature, NoServerAuth, KeyUsage, NotYetValid, Expired,
		ExpiresSoon, NoNames, EndpointInvalid, NameNotCovered, ChainOrder, ChainIncomplete, IntermediateInvalid,
		BundleDoesNotVerify, BundleNotFound, OldClientsBreak, HandshakeFailed, EndpointUnreachable,
		EndpointServesOther:
		return SeverityError
	default:
		return SeverityInfo
	}
}
