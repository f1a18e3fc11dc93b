package authenticator

// Reason says in one word why a login failed.
type Reason string

// The reasons.
const (
	ReasonRefused    Reason = "Refused"           // by the authenticator, which need not say why
	ReasonNotAToken  Reason = "NotAToken"         // where a JSON web token is expected
	ReasonIssuer     Reason = "WrongIssuer"       // another one than the authenticator's
	ReasonAudience   Reason = "WrongAudience"     // another one than the authenticator's
	ReasonExpired    Reason = "Expired"           // or it has no expiration time
	ReasonNotYet     Reason = "NotYetValid"       // by the claim "nbf"
	ReasonIssuerAway Reason = "IssuerUnavailable" // so that its keys could not be fetched
)

const refused = "the authenticator rejects the token"

// Refusal is why a token was refused. Error has the full reason, for a log; Message has what the bearer of the token
// may know.
type Refusal struct {
	Reason  Reason
	message string
	cause   error
}

// Message says why the token was refused, for its bearer.
func (r *Refusal) Message() string { return r.message }

func (r *Refusal) Error() string { return r.cause.Error() }

func (r *Refusal) Unwrap() error { return r.cause }
