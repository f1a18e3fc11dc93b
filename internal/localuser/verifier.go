package localuser

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// errBusy is returned when too many passwords wait to be compared. The client may ask again later.
var errBusy = errors.New("too many logins at once")

// bcryptAlphabet is the base64 of bcrypt hashes.
var bcryptAlphabet = base64.NewEncoding("./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789").
	WithPadding(base64.NoPadding)

// verifier compares passwords. An attempt that fails costs the same work whether or not there is such a user, and the
// work of all attempts together is bounded, so that a flood of them cannot take every CPU or pile up. A user whose
// password matched a short time ago does not wait behind such a flood: it is remembered.
type verifier struct {
	users   *directory
	compare func(hash, password []byte) error // bcrypt.CompareHashAndPassword

	key       []byte // chooses the cost for an unknown username, the same one each time it is tried
	memoryKey []byte // of what is remembered of passwords
	dummySalt string // salt and hash of a random password

	slots     chan struct{} // one for each comparison at a time
	waiting   atomic.Int64
	maxQueued int64
	patience  time.Duration
}

// comparisonsAtOnce is how many passwords are compared at a time on a number of cores. Anybody can cause a
// comparison, so half of the cores are left to everything else on the node, TLS with clients that wait for their turn
// included.
func comparisonsAtOnce(cores int) int { return max(1, cores/2) }

func newVerifier(
	users *directory,
	compare func(hash, password []byte) error,
	parallel int,
	random io.Reader,
) (*verifier, error) {
	secret := make([]byte, 32+32+16+23)
	if _, err := io.ReadFull(random, secret); err != nil {
		return nil, fmt.Errorf("reading random numbers: %w", err)
	}
	return &verifier{
		users:     users,
		compare:   compare,
		key:       secret[:32],
		memoryKey: secret[32:64],
		dummySalt: bcryptAlphabet.EncodeToString(secret[64:80]) + bcryptAlphabet.EncodeToString(secret[80:]),
		slots:     make(chan struct{}, parallel),
		maxQueued: int64(parallel) * 100,
		patience:  10 * time.Second,
	}, nil
}

// verify returns the user when the password is theirs, and nil when it is not or there is no such user. It returns
// errBusy when it had no time for an answer, and the user together with an error when the user's Secret cannot be
// used.
func (v *verifier) verify(ctx context.Context, name, password string) (*user, error) {
	// These are refused for every username, so the answer does not tell which users exist.
	if name == "" || strings.TrimSpace(password) == "" {
		return nil, nil //nolint:nilnil // "not authenticated" is not an error
	}
	found := v.users.lookup(name)
	hash := v.dummyHash(name)
	if found != nil {
		hash = found.hash
	}
	mac := v.macOf(hash, password)
	if found != nil && found.remembers(mac) {
		return found, found.groupsErr
	}
	release, err := v.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if found != nil && found.remembers(mac) { // another login of the same user was before it
		return found, found.groupsErr
	}
	if err := v.compare(hash, []byte(password)); found == nil || err != nil {
		return nil, nil //nolint:nilnil // as above
	}
	v.remember(found, mac)
	return found, found.groupsErr
}

// dummyHash returns a hash for a username that does not exist. Its cost is that of one of the users.
func (v *verifier) dummyHash(name string) []byte {
	mac := hmac.New(sha256.New, v.key)
	mac.Write([]byte(name))
	cost := v.users.costOf(binary.BigEndian.Uint64(mac.Sum(nil)))
	return fmt.Appendf(nil, "$2a$%02d$%s", cost, v.dummySalt)
}

func (v *verifier) acquire(ctx context.Context) (release func(), err error) {
	release = func() { <-v.slots }
	select {
	case v.slots <- struct{}{}:
		return release, nil
	default:
	}
	defer v.waiting.Add(-1)
	if v.waiting.Add(1) > v.maxQueued {
		return nil, errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, v.patience)
	defer cancel()
	select {
	case v.slots <- struct{}{}:
		return release, nil
	case <-ctx.Done():
		return nil, errBusy
	}
}
