package localuser

import (
	"crypto/hmac"
	"crypto/sha256"
	"time"
)

// rememberFor is how long after a comparison it is remembered that a password matches. Clients with credentials of
// five minutes log in several times in it.
const rememberFor = 15 * time.Minute

// matched is that a password was compared with a user's hash, and matches it.
type matched struct {
	mac [sha256.Size]byte // of hash and password
}

// macOf returns what is remembered of a password that matches hash. It tells nothing without the key, which is random
// and in this process only.
func (v *verifier) macOf(hash []byte, password string) (mac [sha256.Size]byte) {
	h := hmac.New(sha256.New, v.memoryKey)
	h.Write(hash) // all have the same length
	h.Write([]byte(password))
	h.Sum(mac[:0])
	return mac
}

// remember makes later logins of the user with the same password cost next to nothing. What does not match is never
// remembered, so each guess costs a comparison. A user is read anew from a Secret that changes, and knows nothing then.
func (v *verifier) remember(u *user, mac [sha256.Size]byte) {
	match := &matched{mac}
	u.matched.Store(match)
	time.AfterFunc(rememberFor, func() { u.matched.CompareAndSwap(match, nil) })
}

// remembers is true when the password that mac is of was compared with the user's hash a short time ago.
func (u *user) remembers(mac [sha256.Size]byte) bool {
	match := u.matched.Load()
	return match != nil && hmac.Equal(match.mac[:], mac[:])
}
