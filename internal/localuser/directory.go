package localuser

import (
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
)

// directory is the users as the Secrets define them now. It is safe for concurrent use.
type directory struct {
	log logr.Logger

	mu    sync.RWMutex
	users map[string]*user
	costs [bcrypt.MaxCost + 1]uint64 // how many users have a hash of each cost
}

func newDirectory(log logr.Logger) *directory {
	return &directory{log: log, users: map[string]*user{}}
}

// set takes over what secret says: a user who is new or changed, or one who is none any more.
func (d *directory) set(secret *corev1.Secret) {
	found, err := parseUser(secret)
	if err != nil {
		d.log.Error(err, "Refused user", "user", secret.Name)
	} else if found != nil && found.groupsErr != nil {
		d.log.Error(found.groupsErr, "Read user without groups; logins are answered with an error", "user", secret.Name)
	}
	d.replace(secret.Name, found)
}

// remove forgets the user of a Secret that is gone.
func (d *directory) remove(name string) { d.replace(name, nil) }

func (d *directory) replace(name string, next *user) {
	d.mu.Lock()
	defer d.mu.Unlock()
	previous := d.users[name]
	if previous != nil {
		d.costs[previous.cost]--
		delete(d.users, name)
	}
	if next != nil {
		d.costs[next.cost]++
		d.users[name] = next
	}
	switch {
	case previous == nil && next != nil:
		d.log.V(2).Info("Added user", "user", name)
	case previous != nil && next == nil:
		d.log.V(2).Info("Removed user", "user", name)
	}
}

// lookup returns the user called name, or nil when there is none. The caller must not change it.
func (d *directory) lookup(name string) *user {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.users[name]
}

// costOf returns the cost of the password hash of one of the users, the pick-th by cost. For equally spread picks the
// costs come up as often as they do among the users. Without users it is bcrypt's default.
func (d *directory) costOf(pick uint64) int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if len(d.users) == 0 {
		return bcrypt.DefaultCost
	}
	left := pick % uint64(len(d.users))
	for cost, count := range d.costs {
		if left < count {
			return cost
		}
		left -= count
	}
	return bcrypt.DefaultCost
}
