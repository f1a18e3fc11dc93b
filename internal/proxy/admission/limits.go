package admission

// Kind is one kind of thing that a client can cause. The first ones take memory, the others take turns.
type Kind int

const (
	// Connection is an open connection, with the first request on it.
	Connection Kind = iota
	// Input is what a client has sent and what nothing has come of yet, such as half a head.
	Input
	// Request is a request and its body, as far as that is here.
	Request
	// Stream is a watch, a log or an upgraded connection.
	Stream
	// Answer is what of an answer is on its way to the client.
	Answer

	// Unread are answers that the client has stopped reading. Each keeps a request busy at the API server.
	Unread
	// Handshake is the TLS handshake of a stranger, for as long as its client takes.
	Handshake
	// Look is what is computed for a stranger: each flight of the TLS handshake, and a request until its user is known or has
	// to be asked for.
	Look
	// Certificate is the verification of a client certificate that is not known.
	Certificate
	// TokenReview is the question to the API server whose a token is.
	TokenReview
	// AccessReview is the question whether somebody may do something.
	AccessReview
	// Login is a TokenCredentialRequest that the proxy sends to the API server.
	Login
	// ServedLogin is one that comes back from there to the Concierge APIs.
	ServedLogin
	// Forward is a request at the API server, in seats: as many as the request takes of it.
	Forward

	numKinds
)

// String returns the name of the kind in metrics and messages.
func (k Kind) String() string {
	return [...]string{
		"connections", "input", "requests", "streams", "answers", "unread", "handshakes", "looks", "certificates",
		"token reviews", "access reviews", "logins", "served logins", "forwarded",
	}[k]
}

// TakesTurns is true for kinds of work, and false for kinds of memory.
func (k Kind) TakesTurns() bool { return k >= Unread }

// computes is true for kinds whose work is done by the agent's own processors.
func (k Kind) computes() bool { return k == Look || k == Certificate }

// row is what the table says about a kind. Zero is no bound.
type row struct {
	memory    int64 // bytes that one user may hold
	strangers int64 // bytes that all strangers may hold, so that they have room for connections

	seats     int // that are taken at a time
	perOwner  int // seats of one owner
	perMember int // seats of one member: of a connection, as long as there is no user
	yielding  int // the same for what yields, while others come, too
	queued    int // how much of one member may be there, with and without seats, and
	most      int // how much in all
	waiting   int // how much may wait in all, but for the first of each member
	refuses   bool
}

// Limits are the table, for one size of pod.
type Limits struct {
	users, strangers int64 // bytes
	rows             [numKinds]row
	processors       int
}

const (
	// DefaultMemory is the memory limit of the pod as it is shipped, of which one part of apiPart is for clients of the
	// Concierge APIs.
	DefaultMemory = 512 << 20
	apiPart       = 16

	// ConnectionBytes is what a connection takes with TLS, HTTP/2 and its first request.
	ConnectionBytes = 40 << 10
	// HandshakeBytes is what it takes from its handshake on.
	HandshakeBytes = 24 << 10
	// AcceptedBytes is what it takes before: thousands may come at once.
	AcceptedBytes = 6 << 10
	// RequestBytes is what a request takes beside its head and body.
	RequestBytes = 12 << 10
	// StreamBytes is what a stream takes, which stays.
	StreamBytes = 28 << 10

	// LongSeats is how many seats a request for a long answer takes: 2 of one user are at the API server at a time. It is
	// also how many an answer that is not read takes of Unread, if it is no stream.
	LongSeats    = forwardSeats / 16
	forwardSeats = 128
	// StrangersReview is how many seats a stranger's access review takes: each address has one review at a time.
	StrangersReview = 16

	// modestPart: one part of so many of the memory of users is for those who hold no more than one part of littlePart.
	modestPart = 8
	littlePart = 128
	// queuedPerConnection is how many questions one connection may have waiting as long as there is no user on it.
	queuedPerConnection = 16
)

// LimitsFor returns the table for so many bytes of memory and so many processors. Most of the memory is for what users
// hold; the rest is for strangers, for the agent itself and for garbage.
func LimitsFor(memory int64, processors int) Limits {
	half := max(1, processors/2)
	users := memory / 50 * 33
	return Limits{
		users: users, strangers: memory / 8, processors: max(1, processors),
		rows: [numKinds]row{
			Connection: {memory: users / 4},
			Input:      {memory: users / 8, strangers: memory / 32},
			Request:    {memory: users / 4},
			Stream:     {},
			Answer:     {memory: users / 4},

			Unread:       {seats: 512, perOwner: 64, refuses: true},
			Handshake:    {seats: int(memory / 64 / HandshakeBytes)},
			Look:         {seats: half},
			Certificate:  {seats: half, waiting: 256}, // all requests of one connection need the same one
			TokenReview:  {seats: 16, perMember: 8, queued: queuedPerConnection},
			AccessReview: {seats: 2 * StrangersReview, perOwner: StrangersReview},
			Login:        {seats: 8, perOwner: 6, perMember: 1, queued: queuedPerConnection, waiting: 128},
			ServedLogin:  {seats: 24, perMember: 12, queued: 24, most: 40},
			Forward: {
				seats: forwardSeats, perOwner: forwardSeats / 4, perMember: forwardSeats / 8, yielding: forwardSeats / 32,
			},
		},
	}
}

// APILimitsFor returns the table for the port of the Concierge APIs, where there is one user, the API server's front
// proxy. It has memory of its own, so that neither port suffers from the other one.
func APILimitsFor(memory int64, processors int) Limits { return LimitsFor(memory/apiPart, processors) }
