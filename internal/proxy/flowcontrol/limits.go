package flowcontrol

// Resource is a limited resource. The first ones are memory, the others are seats.
type Resource int

const (
	// Connection is an open connection, with the first request on it.
	Connection Resource = iota
	// Input is unprocessed input of a client, such as an incomplete header.
	Input
	// Request is a request and the buffered part of its body.
	Request
	// Stream is a watch, a log or an upgraded connection.
	Stream
	// Response is the buffered part of a response.
	Response

	// SlowClient is a response that the client has stopped reading. It keeps the API server busy.
	SlowClient
	// Handshake is the TLS handshake of an unauthenticated client, including the time that the client takes.
	Handshake
	// PreAuth is work for an unauthenticated client: each flight of the TLS handshake, and each request until its user
	// is known or a review is sent.
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
	// Forward is a request at the API server. It takes as many seats as the API server needs for it.
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

// HasSeats is true for resources of seats, and false for resources of memory.
func (k Resource) HasSeats() bool { return k >= SlowClient }

// computes is true for work on the agent's own processors.
func (k Resource) computes() bool { return k == PreAuth || k == Certificate }

// row has the limits of a resource. Zero means no limit.
type row struct {
	memory          int64 // bytes that one user may hold
	unauthenticated int64 // bytes that all unauthenticated clients may hold

	seats      int // occupied at a time
	perFlow    int // seats of one flow
	perSubFlow int // seats of one sub-flow: a connection while there is no user
	yielding   int // perSubFlow of work that yields, while other flows are active
	queued     int // operations of one sub-flow, granted and queued
	most       int // operations in all, granted and queued
	waiting    int // queued operations in all; the first of each sub-flow is exempt
	refuses    bool
}

// Limits is the table of limits for one size of pod.
type Limits struct {
	users, unauthenticated int64 // bytes
	rows                   [numResources]row
	processors             int
}

const (
	// DefaultMemory is the default memory limit of the pod. One part in apiPart is for clients of the Concierge APIs.
	DefaultMemory = 512 << 20
	apiPart       = 16

	// ConnectionBytes is the size of a connection with TLS, HTTP/2 and its first request.
	ConnectionBytes = 40 << 10
	// HandshakeBytes is the size of a connection from its handshake on.
	HandshakeBytes = 24 << 10
	// AcceptedBytes is the size of a connection before its handshake: thousands may arrive at once.
	AcceptedBytes = 6 << 10
	// RequestBytes is the size of a request in addition to its header and body.
	RequestBytes = 12 << 10
	// StreamBytes is the size of a stream.
	StreamBytes = 28 << 10

	// LongSeats is how many seats a request with a long response occupies: one user has 2 of them at the API server at
	// a time. It is also how many SlowClient seats an ordinary response occupies.
	LongSeats    = forwardSeats / 16
	forwardSeats = 128
	// UnauthenticatedReview is how many seats an unauthenticated client's access review occupies: each address has one
	// review at a time.
	UnauthenticatedReview = 16

	// One part in modestPart of the users' memory is reserved for users who hold at most one part in littlePart.
	modestPart = 8
	littlePart = 128
	// queuedPerConnection limits the queued reviews or logins of one unauthenticated connection.
	queuedPerConnection = 16
)

// LimitsFor returns the table for a memory limit in bytes and a number of processors. Most of the memory is for users;
// the rest is for unauthenticated clients, the agent itself and garbage.
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
			Certificate:  {seats: half, waiting: 256}, // all requests of one connection need the same verification
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

// APILimitsFor returns the table for the port of the Concierge APIs, whose only user is the API server's front proxy.
// It has its own memory, so that load on one port does not affect the other.
func APILimitsFor(memory int64, processors int) Limits { return LimitsFor(memory/apiPart, processors) }
