package localuser

import (
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// countedVerifier has users of fakeHash, and compares passwords as if "right" were theirs.
func countedVerifier(t *testing.T, during func()) (*verifier, func() int) {
	t.Helper()
	var mu sync.Mutex
	compared := 0
	v, err := newVerifier(directoryWithCosts(5, 5), func(_, password []byte) error {
		mu.Lock()
		compared++
		mu.Unlock()
		during()
		if string(password) != "right" {
			return bcrypt.ErrMismatchedHashAndPassword
		}
		return nil
	}, 1, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return v, func() int {
		mu.Lock()
		defer mu.Unlock()
		return compared
	}
}

// A right password is compared once in rememberFor, a wrong one each time.
func TestRightPasswordsAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v, compared := countedVerifier(t, func() {})
		user0 := func(hash []byte) *corev1.Secret {
			return &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "user0"},
				Data:       map[string][]byte{passwordHashKey: hash},
			}
		}
		for _, step := range []struct {
			before         func()
			name, password string
			known          bool
			comparisons    int
			why            string
		}{
			{nil, "user0", "right", true, 1, "compares it the first time"},
			{nil, "user0", "right", true, 0, "remembers it"},
			{nil, "user0", "wrong", false, 1, "compares what is wrong"},
			{nil, "user0", "wrong", false, 1, "compares what is wrong again"},
			{nil, "user0", "rightright", false, 1, "compares what begins like it"},
			{nil, "user0", "right", true, 0, "remembers it after wrong ones"},
			{nil, "user1", "right", true, 1, "remembers it of that user only"},
			{nil, "nobody", "right", false, 1, "remembers nobody's"},
			{nil, "nobody", "right", false, 1, "remembers nobody's the second time"},
			{
				func() { v.users.set(user0(fakeHash(6))) },
				"user0", "right", true, 1, "compares it with the hash of a Secret that has changed",
			},
			{func() { time.Sleep(rememberFor - time.Second) }, "user0", "right", true, 0, "remembers it for a while"},
			{func() { time.Sleep(time.Second) }, "user0", "right", true, 1, "forgets it then, used or not"},
			{func() { v.users.remove("user0") }, "user0", "right", false, 1, "knows no user who is gone"},
			{func() { v.users.set(user0(fakeHash(6))) }, "user0", "right", true, 1, "knows nothing of one who is back"},
		} {
			if step.before != nil {
				step.before()
				synctest.Wait()
			}
			before := compared()
			found, err := v.verify(t.Context(), step.name, step.password)
			if err != nil || (found != nil) != step.known {
				t.Errorf("it %s: want known %t, got %v, %v", step.why, step.known, found, err)
			}
			if got := compared() - before; got != step.comparisons {
				t.Errorf("it %s: want %d comparisons, got %d", step.why, step.comparisons, got)
			}
		}
		time.Sleep(rememberFor)
		synctest.Wait()
		if left := v.users.lookup("user1").matched.Load(); left != nil {
			t.Error("want nothing kept when its time is over")
		}
	})
}

// TestRightPasswordsDoNotWait has wrong passwords take all there is to compare with. Who has logged in before does
// not stand behind them, and many logins of one user that wait are one comparison.
func TestRightPasswordsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		wait := func() {}
		v, compared := countedVerifier(t, func() { wait() })
		if found, err := v.verify(t.Context(), "user0", "right"); found == nil || err != nil {
			t.Fatalf("want the user, got %v, %v", found, err)
		}
		wait = func() { <-hold }
		var group sync.WaitGroup
		const guesses, logins = 10, 5
		for i := range guesses {
			group.Go(func() { _, _ = v.verify(t.Context(), "user0", fmt.Sprint(i)) })
		}
		synctest.Wait()
		if found, err := v.verify(t.Context(), "user0", "right"); found == nil || err != nil {
			t.Errorf("beside a flood: want the user, got %v, %v", found, err)
		}
		before := compared()
		for range logins {
			group.Go(func() {
				if found, err := v.verify(t.Context(), "user1", "right"); found == nil || err != nil {
					t.Errorf("after a flood: want the user, got %v, %v", found, err)
				}
			})
		}
		synctest.Wait()
		close(hold)
		group.Wait()
		if got, want := compared()-before, guesses-1+1; got != want {
			t.Errorf("want %d comparisons, got %d", want, got)
		}
	})
}
