package proxy

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// headSpeed is how many bytes of large heads one user may have decoded in a second, and all clients without a user
	// together. In HTTP/2, 250 bytes can stand for a head of 1 MiB (HPACK, RFC 7541), which takes some 0.3 ms of a processor.
	headSpeed = 32 << 20
	// headBurst is for how much of that nobody waits.
	headBurst = headSpeed / 4
	// maxHeadOwners is how many users are remembered until those who owe nothing are forgotten.
	maxHeadOwners = 1024
)

// headSpeeds bounds how fast large heads are decoded. They are decoded before they can be counted, so whoever has sent
// too many is not read until enough time has passed for them. The size of what is read says nothing about it.
type headSpeeds struct {
	latest atomic.Int64 // until when anybody has to wait, in Unix nanoseconds

	mu    sync.Mutex
	until map[string]int64 // as latest, by user, "" for all clients without one
}

// decoded says that a head of so many bytes has come from a user, "" for none. It returns until when the connection is not
// to be read, in Unix nanoseconds, which may be over.
func (h *headSpeeds) decoded(user string, bytes int64) int64 {
	now := time.Now().UnixNano()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == nil || len(h.until) >= maxHeadOwners {
		h.forget(now)
	}
	until := max(h.until[user], now-int64(time.Second)*headBurst/headSpeed) + bytes*int64(time.Second)/headSpeed
	h.until[user] = until
	h.latest.Store(max(h.latest.Load(), until))
	return until
}

// forget forgets those who do not have to wait. The caller holds h.mu.
func (h *headSpeeds) forget(now int64) {
	left := map[string]int64{}
	for user, until := range h.until {
		if until > now {
			left[user] = until
		}
	}
	h.until = left
}

func (h *headSpeeds) of(user string) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until[user]
}

// decodedHead counts the head of a request on the connection, unless it is short. An HTTP/1 client has to send all of it.
func (c *clientConn) decodedHead(bytes int64, protocol int) {
	if bytes <= small || protocol != 2 {
		return
	}
	if user := c.user.Load(); user != nil {
		c.all.heads.decoded(*user, bytes)
		return
	}
	c.readAgain.Store(c.all.heads.decoded("", bytes))
}

// waitForHeads waits while the user of the connection has sent too many large heads, whatever connection they were on.
// Without a user, only connections on which they have come wait.
func (c *clientConn) waitForHeads() {
	for !isClosed(c.gone) {
		now := time.Now().UnixNano()
		if now >= c.all.heads.latest.Load() {
			return
		}
		until := c.readAgain.Load()
		if user := c.user.Load(); user != nil {
			until = c.all.heads.of(*user)
		}
		if until <= now {
			return
		}
		c.waitOrGone(min(time.Duration(until-now), roomPause))
	}
}
