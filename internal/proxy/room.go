package proxy

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
)

const (
	// roomPause is the time between two looks for room in a user's share of requests, and how long a turn lasts in which a
	// connection is read: it may bring a hundred requests at once.
	roomPause = 50 * time.Millisecond
	// longestRoomPause is how long a connection waits for room before it is read in its turn without. Its requests are
	// refused then.
	longestRoomPause = 2 * time.Second
)

// newRoom makes the queue in which connections of users who ask for too much take turns to be read.
func newRoom() *fairqueue.Queue { return fairqueue.New(fairqueue.Limits{Slots: 1}) }

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

// waitForRoom waits while the share of requests of the connection's user is full and nothing is being served on it, and
// then for a turn. What is not read yet stays with the client, and costs nothing: a refusal costs as much as many an
// answer. Connections on which something is being served are read, as the client may have to open its windows, or to send
// a body.
//
// A user who misuses streams waits for turns only. Most of what the connections bring would be refused, and each of them
// has cost a TLS handshake by then.
func (c *clientConn) waitForRoom() {
	user := c.user.Load()
	if user == nil || c.serving.Load() > 0 {
		return
	}
	isFull := func() bool { return c.all.budget.IsFull(budget.Requests, *user) }
	if !isFull() && !c.all.budget.UserMisuses(*user) {
		return
	}
	end := time.Now().Add(longestRoomPause)
	for {
		for isFull() && time.Now().Before(end) && !isClosed(c.gone) {
			c.waitOrGone(roomPause)
		}
		turn := c.all.room.Join(fairqueue.Owner{Name: *user})
		if !turn.Begun() {
			select {
			case <-turn.Slot():
			case <-c.gone:
			}
		}
		if isClosed(c.gone) {
			turn.Done()
			return
		}
		if !isFull() || !time.Now().Before(end) {
			time.AfterFunc(roomPause, turn.Done)
			return
		}
		turn.Done() // others have taken the room meanwhile
	}
}
