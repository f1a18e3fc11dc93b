package impersonator

import (
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
)

const (
	// roomPause is the time between two looks for room in a user's share of requests, and between two connections that
	// find some: each may bring a hundred requests at once.
	roomPause = 50 * time.Millisecond
	// longestRoomPause is how long a connection waits until it is read in its turn though there is no room. Its
	// requests are refused then.
	longestRoomPause = 2 * time.Second
)

// room lets the connections of users whose share of requests is full be read one after the other.
type room struct {
	last atomic.Int64 // when one found room, in Unix nanoseconds
}

// take is true for one caller in each roomPause.
func (r *room) take() bool {
	now, last := time.Now().UnixNano(), r.last.Load()
	return now-last >= int64(roomPause) && r.last.CompareAndSwap(last, now)
}

// recognize counts the connection for its user from the end of the TLS handshake on, if its certificate was verified
// before. Otherwise a user with a thousand connections would hold the places of strangers until each has sent a
// request.
func (c *clientConn) recognize() {
	user := c.received.user
	if user == "" || !isClosed(c.received.shaken) {
		return
	}
	c.received.user = ""
	_ = c.identify(user) // when the share is full it stays a stranger's until a request comes, which is refused
}

// waitForRoom waits while the share of requests of the connection's user is full and nothing is being served on it.
// What is not read yet stays with the client, and costs nothing: a refusal costs as much as many an answer. Connections
// on which something is being served are read, as the client may have to open its windows, or to send a body.
func (c *clientConn) waitForRoom() {
	if !c.needsRoom() {
		return
	}
	for end := time.Now().Add(longestRoomPause); !isClosed(c.gone); c.waitOrGone(roomPause) {
		if full := c.needsRoom(); (!full || !time.Now().Before(end)) && c.all.room.take() {
			return
		}
	}
}

func (c *clientConn) needsRoom() bool {
	user := c.user.Load()
	return user != nil && c.serving.Load() == 0 && !c.unused.upgraded.Load() &&
		c.all.budget.IsFull(budget.Requests, *user)
}
