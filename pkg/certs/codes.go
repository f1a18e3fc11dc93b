package certs

// Code is the code of a check. Codes are stable: they are in the CredentialIssuer's status, events and scripts.
type Code string

// The codes, in the order of the checks.
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

// Explanation is the output of `pinniped explain CODE`.
type Explanation struct {
	Code Code `json:"code"`
	// Severity is the usual severity; Cause says when a finding is less severe.
	Severity Severity `json:"severity"`
	// Allowable is true if `--allow CODE` can allow the error.
	Allowable   bool   `json:"allowable"`
	Cause       string `json:"cause"`
	Consequence string `json:"consequence"`
	Fix         string `json:"fix"`
	Example     string `json:"example,omitempty"`
}

// Explain returns the explanation of a code; ok is false for an unknown code.
func Explain(code Code) (explanation Explanation, ok bool) {
	for _, e := range catalogue() {
		if e.Code == code {
			e.Allowable = Allowable(code)
			return e, true
		}
	}
	return Explanation{}, false
}

// Codes returns all codes, in the order of the checks.
func Codes() []Code {
	all := catalogue()
	codes := make([]Code, len(all))
	for i, e := range all {
		codes[i] = e.Code
	}
	return codes
}

// Allowable reports whether an error with this code can be allowed: the agent either accepts such a certificate or can
// be configured to. The agent refuses all others in any case. A particular finding may still not be allowable: the
// agent always refuses a certificate that a published CA bundle does not verify.
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
