package authenticator

// Reason is the machine-readable reason of a failed login.
type Reason string

// The reasons.
const (
	ReasonRefused    Reason = "Refused"           // by the authenticator, without a known reason
	ReasonNotAToken  Reason = "NotAToken"         // not a JSON web token
	ReasonIssuer     Reason = "WrongIssuer"       // not the authenticator's issuer
	ReasonAudience   Reason = "WrongAudience"     // not the authenticator's audience
	ReasonExpired    Reason = "Expired"           // or without an expiry
	ReasonNotYet     Reason = "NotYetValid"       // by the claim "nbf"
	ReasonIssuerAway Reason = "IssuerUnavailable" // the keys could not be fetched
)

const refused = "the authenticator rejects the token"

// Refusal is the error for a refused token. Error returns the full reason, for a log; Message returns what the bearer
// of the token may know.
type Refusal struct {
	Reason  Reason
	message string
	cause   error
}

// Message returns why the token was refused, for its bearer.
func (r *Refusal) Message() string { return r.message }

func (r *Refusal) Error() string { return r.cause.Error() }

func (r *Refusal) Unwrap() error { return r.cause }
