package localuser

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
)

const (
	patience  = 10 * time.Second // how long a login waits for its comparison
	maxLogins = 100              // that wait or are compared at a time
)

// errBusy is returned when too many passwords wait to be compared. The client may retry.
var errBusy = errors.New("too many logins at once")

// verifier compares passwords, a bounded number at a time: anyone who reaches the port can cause a comparison.
type verifier struct {
	users   *directory
	unknown []byte // hash of a random password, compared for an unknown username so that it takes as long as a known one
	logins  chan struct{}
	seats   chan struct{}
}

func newVerifier(users *directory, parallel int) (*verifier, error) {
	unknown, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), bcrypt.DefaultCost)
	if err != nil {
		return nil, fmt.Errorf("hashing a random password: %w", err)
	}
	return &verifier{
		users: users, unknown: unknown,
		logins: make(chan struct{}, maxLogins), seats: make(chan struct{}, parallel),
	}, nil
}

// verify returns the user when the password is theirs, and nil when it is not or there is no such user. It returns
// errBusy when it had no time for the comparison, and the user with an error when the user's groups cannot be read.
func (v *verifier) verify(ctx context.Context, name, password string) (*user, error) {
	// Refused for every username, so that the result does not reveal which users exist.
	if name == "" || strings.TrimSpace(password) == "" {
		return nil, nil //nolint:nilnil // "not authenticated" is not an error
	}
	select {
	case v.logins <- struct{}{}:
		defer func() { <-v.logins }()
	default:
		return nil, errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case v.seats <- struct{}{}:
		defer func() { <-v.seats }()
	case <-ctx.Done():
		return nil, errBusy
	}
	found, hash := v.users.lookup(name), v.unknown
	if found != nil {
		hash = found.hash
	}
	if err := bcrypt.CompareHashAndPassword(hash, []byte(password)); found == nil || err != nil {
		return nil, nil //nolint:nilnil // as above
	}
	return found, found.groupsErr
}
