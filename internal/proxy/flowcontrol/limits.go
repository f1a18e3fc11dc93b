package flowcontrol

// Resource is a resource that clients use. The first ones are memory, the others are seats.
type Resource int

const (
	// Connection is an open connection, with the first request on it.
	Connection Resource = iota
	// Input is unprocessed input of a client, such as half a head.
	Input
	// Request is a request and the buffered part of its body.
	Request
	// Stream is a watch, a log or an upgraded connection.
	Stream
	// Response is the buffered part of a response.
	Response

	// SlowClient is a response that the client has stopped reading. It keeps a request busy at the API server.
	SlowClient
	// Handshake is the TLS handshake of an unauthenticated client, for as long as its client takes.
	Handshake
	// PreAuth is work for an unauthenticated client: each flight of the TLS handshake, and a request until its user is
	// known or a review is sent.
	PreAuth
	// Certificate is the verification of a client certificate that is not cached.
	Certificate
	// TokenReview is a TokenReview at the API server.
	TokenReview
	// AccessReview is a SubjectAccessReview at the API server.
	AccessReview
	// Login is a TokenCredentialRequest that the proxy sends to the API server.
	Login
	// ServedLogin is a TokenCredentialRequest at the Concierge APIs.
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

// row has the limits of a resource. Zero means no limit.
type row struct {
	memory          int64 // bytes that one user may hold
	unauthenticated int64 // bytes that all unauthenticated clients may hold, so that they have room for connections

	seats      int // occupied at a time
	perFlow    int // seats of one flow
	perSubFlow int // seats of one sub-flow: of a connection, as long as there is no user
	yielding   int // the same for work that yields, while other flows are active
	queued     int // seats of one sub-flow, occupied and queued, and
	most       int // how much in all
	waiting    int // queued seats in all, except the first of each sub-flow
	refuses    bool
}

// Limits are the table, for one size of pod.
type Limits struct {
	users, unauthenticated int64 // bytes
	rows                   [numResources]row
	processors             int
}

const (
	// DefaultMemory is the memory limit of the pod as it is shipped, of which one part in apiPart is for clients of the
	// Concierge APIs.
	DefaultMemory = 512 << 20
	apiPart       = 16

	// ConnectionBytes is what a connection takes with TLS, HTTP/2 and its first request.
	ConnectionBytes = 40 << 10
	// HandshakeBytes is what it takes from its handshake on.
	HandshakeBytes = 24 << 10
	// AcceptedBytes is what it takes before: thousands may come at once.
	AcceptedBytes = 6 << 10
	// RequestBytes is what a request takes in addition to its head and body.
	RequestBytes = 12 << 10
	// StreamBytes is what a stream takes, which stays.
	StreamBytes = 28 << 10

	// LongSeats is how many seats a request with a long response occupies: 2 of one user are at the API server at a
	// time. It is also how many SlowClient seats an ordinary response occupies.
	LongSeats    = forwardSeats / 16
	forwardSeats = 128
	// UnauthenticatedReview is how many seats an unauthenticated client's access review occupies: each address has one
	// review at a time.
	UnauthenticatedReview = 16

	// modestPart: one part in modestPart of the users' memory is for users who hold no more than one part in
	// littlePart.
	modestPart = 8
	littlePart = 128
	// queuedPerConnection is how many reviews or logins of one unauthenticated connection may be queued.
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
// proxy. It has memory of its own, so that load on one port does not affect the other.
func APILimitsFor(memory int64, processors int) Limits { return LimitsFor(memory/apiPart, processors) }
