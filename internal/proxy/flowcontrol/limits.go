package flowcontrol

// Resource is one resource of thing that a client can cause. The first ones take memory, the others take turns.
type Resource int

const (
	// Connection is an open connection, with the first request on it.
	Connection Resource = iota
	// Input is what a client has sent and what nothing has come of yet, such as half a head.
	Input
	// Request is a request and its body, as far as that is here.
	Request
	// Stream is a watch, a log or an upgraded connection.
	Stream
	// Response is what of a response is on its way to the client.
	Response

	// SlowClient are answers that the client has stopped reading. Each keeps a request busy at the API server.
	SlowClient
	// Handshake is the TLS handshake of an unauthenticated client, for as long as its client takes.
	Handshake
	// PreAuth is what is computed for an unauthenticated client: each flight of the TLS handshake, and a request until its
	// user is known or has to be asked for.
	PreAuth
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

	numResources
)

// String returns the name of the resource in metrics and messages.
func (k Resource) String() string {
	return [...]string{
		"connections", "input", "requests", "streams", "responses", "slow clients", "handshakes", "pre-authentication", "certificates",
		"token reviews", "access reviews", "logins", "served logins", "forwarded",
	}[k]
}

// HasSeats is true for resources of work, and false for resources of memory.
func (k Resource) HasSeats() bool { return k >= SlowClient }

// computes is true for resources whose work is done by the agent's own processors.
func (k Resource) computes() bool { return k == PreAuth || k == Certificate }

// row is what the table says about a resource. Zero is no bound.
type row struct {
	memory          int64 // bytes that one user may hold
	unauthenticated int64 // bytes that all unauthenticated clients may hold, so that they have room for connections

	seats      int // that are taken at a time
	perFlow    int // seats of one flow
	perSubFlow int // seats of one sub-flow: of a connection, as long as there is no user
	yielding   int // the same for what yields, while others come, too
	queued     int // how much of one sub-flow may be there, with and without seats, and
	most       int // how much in all
	waiting    int // how much may wait in all, but for the first of each sub-flow
	refuses    bool
}

// Limits are the table, for one size of pod.
type Limits struct {
	users, unauthenticated int64 // bytes
	rows                   [numResources]row
	processors             int
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

	// LongSeats is how many seats a request for a long response takes: 2 of one user are at the API server at a time. It
	// is also how many a response that is not read takes of SlowClient, if it is no stream.
	LongSeats    = forwardSeats / 16
	forwardSeats = 128
	// UnauthenticatedReview is how many seats an unauthenticated client's access review takes: each address has one review
	// at a time.
	UnauthenticatedReview = 16

	// modestPart: one part of so many of the memory of users is for those who hold no more than one part of littlePart.
	modestPart = 8
	littlePart = 128
	// queuedPerConnection is how many questions one connection may have waiting as long as there is no user on it.
	queuedPerConnection = 16
)

// LimitsFor returns the table for so many bytes of memory and so many processors. Most of the memory is for what users
// hold; the rest is for unauthenticated clients, for the agent itself and for garbage.
func LimitsFor(memory int64, processors int) Limits {
	half := max(1, processors/2)
	users := memory / 50 * 33
	return Limits{
		users: users, unauthenticated: memory / 8, processors: max(1, processors),
		rows: [numResources]row{
			Connection: {memory: users / 4},
			Input:      {memory: users / 8, unauthenticated: memory / 32},
			Request:    {memory: users / 4},
			Stream:     {},
			Response:   {memory: users / 4},

			SlowClient:   {seats: 512, perFlow: 64, refuses: true},
			Handshake:    {seats: int(memory / 64 / HandshakeBytes)},
			PreAuth:      {seats: half},
			Certificate:  {seats: half, waiting: 256}, // all requests of one connection need the same one
			TokenReview:  {seats: 16, perSubFlow: 8, queued: queuedPerConnection},
			AccessReview: {seats: 2 * UnauthenticatedReview, perFlow: UnauthenticatedReview},
			Login:        {seats: 8, perFlow: 6, perSubFlow: 1, queued: queuedPerConnection, waiting: 128},
			ServedLogin:  {seats: 24, perSubFlow: 12, queued: 24, most: 40},
			Forward: {
				seats: forwardSeats, perFlow: forwardSeats / 4, perSubFlow: forwardSeats / 8, yielding: forwardSeats / 32,
			},
		},
	}
}

// APILimitsFor returns the table for the port of the Concierge APIs, where there is one user, the API server's front
// proxy. It has memory of its own, so that neither port suffers from the other one.
func APILimitsFor(memory int64, processors int) Limits { return LimitsFor(memory/apiPart, processors) }
