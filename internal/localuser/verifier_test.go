package localuser

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/crypto/bcrypt"
)

// An unknown username costs a comparison, too: at the default cost, which `htpasswd -C 10` in the how-to has.
func TestVerifyComparesForUnknownUsers(t *testing.T) {
	t.Parallel()
	v, err := newVerifier(&directory{log: logr.Discard()}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if cost, err := bcrypt.Cost(v.unknown); err != nil || cost != bcrypt.DefaultCost {
		t.Errorf("the hash for unknown users has cost %d, %v", cost, err)
	}
	if found, err := v.verify(t.Context(), "nobody", "x"); found != nil || err != nil {
		t.Errorf("want no user and no error, got %v, %v", found, err)
	}
}

func TestVerifyBoundsTheWork(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		logins       int           // that wait already
		cancel, want time.Duration // when the client leaves, and how long the login waits
	}{
		"leaves when the client does":  {cancel: time.Second, want: time.Second},
		"leaves when its time is over": {cancel: time.Hour, want: patience},
		"refuses one login too many":   {logins: maxLogins, cancel: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				v := newTestVerifier(t, logr.Discard(), userSecret(t, "pinny", "password123", bcrypt.MinCost, nil))
				for range cap(v.seats) {
					v.seats <- struct{}{}
				}
				for range test.logins {
					v.logins <- struct{}{}
				}
				ctx, cancel := context.WithTimeout(t.Context(), test.cancel)
				defer cancel()
				began := time.Now()
				if _, err := v.verify(ctx, "pinny", "password123"); !errors.Is(err, errBusy) {
					t.Errorf("want errBusy, got %v", err)
				}
				if got := time.Since(began); got != test.want {
					t.Errorf("want to wait %v, waited %v", test.want, got)
				}
				if got := len(v.logins); got != test.logins {
					t.Errorf("%d logins are still counted", got)
				}
				for range cap(v.seats) {
					<-v.seats
				}
				for range test.logins {
					<-v.logins
				}
				if found, err := v.verify(t.Context(), "pinny", "password123"); found == nil || err != nil {
					t.Errorf("after the flood: want the user, got %v, %v", found, err)
				}
			})
		})
	}
}
