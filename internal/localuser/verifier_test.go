package localuser

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fakeHash is a well-formed hash of some password.
func fakeHash(cost int) []byte { return fmt.Appendf(nil, "$2y$%02d$%s", cost, strings.Repeat("a", 53)) }

func directoryWithCosts(costs ...int) *directory {
	users := newDirectory(logr.Discard())
	for i, cost := range costs {
		users.set(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("user%d", i)},
			Data:       map[string][]byte{passwordHashKey: fakeHash(cost)},
		})
	}
	return users
}

// An attempt must cost the same work for a known and for an unknown user. The work is counted, because time depends
// on the machine.
func TestVerifyWorksEquallyHardForUnknownUsers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		costs    []int // of the users user0, user1, ...
		username string
		password string
		want     []int // the costs that a comparison may have; none when there must be none
	}{
		{name: "compares once for a known user", costs: []int{12}, username: "user0", password: "x", want: []int{12}},
		{
			name:     "compares once at the same cost for an unknown user",
			costs:    []int{12},
			username: "nobody",
			password: "x",
			want:     []int{12},
		},
		{
			name:     "compares at one of the costs there are",
			costs:    []int{5, 12, 12},
			username: "nobody",
			password: "x",
			want:     []int{5, 12},
		},
		{
			name:     "compares at the default cost without users",
			username: "nobody",
			password: "x",
			want:     []int{bcrypt.DefaultCost},
		},
		{name: "compares nothing for a blank password of a known user", costs: []int{12}, username: "user0", password: " "},
		{
			name:     "compares nothing for a blank password of an unknown user",
			costs:    []int{12},
			username: "nobody",
			password: " ",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var hashes [][]byte
			compare := func(hash, _ []byte) error {
				hashes = append(hashes, hash)
				return bcrypt.ErrMismatchedHashAndPassword
			}
			v, err := newVerifier(directoryWithCosts(test.costs...), compare, 1, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			const attempts = 20
			for range attempts {
				if found, err := v.verify(t.Context(), test.username, test.password); found != nil || err != nil {
					t.Fatalf("want no user and no error, got %v, %v", found, err)
				}
			}
			if test.want == nil {
				if len(hashes) != 0 {
					t.Fatalf("want no comparison, got %d", len(hashes))
				}
				return
			}
			if len(hashes) != attempts {
				t.Fatalf("want %d comparisons, got %d", attempts, len(hashes))
			}
			for _, hash := range hashes {
				cost, err := bcrypt.Cost(hash)
				if err != nil || !bcryptHash.Match(hash) {
					t.Fatalf("comparison with a hash that costs nothing: %v", err)
				}
				if !slices.Contains(test.want, cost) {
					t.Errorf("comparison at cost %d, want one of %v", cost, test.want)
				}
				if !bytes.Equal(hash, hashes[0]) {
					t.Error("the same name is compared with another hash the second time")
				}
			}
		})
	}
}

// A fixed cost for all unknown names would tell users apart as soon as costs differ.
func TestVerifySpreadsUnknownUsersOverTheCosts(t *testing.T) {
	t.Parallel()
	seen := map[int]int{}
	compare := func(hash, _ []byte) error {
		cost, err := bcrypt.Cost(hash)
		seen[cost]++
		return errors.Join(bcrypt.ErrMismatchedHashAndPassword, err)
	}
	v, err := newVerifier(directoryWithCosts(5, 12, 12, 12), compare, 1, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const names = 1000
	for i := range names {
		if _, err := v.verify(t.Context(), fmt.Sprintf("nobody%d", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if seen[5]+seen[12] != names || seen[5] < names/8 || seen[5] > names*3/8 {
		t.Errorf("want about a quarter at cost 5 and the others at 12, got %v", seen)
	}
}

func TestDirectoryCountsCosts(t *testing.T) {
	t.Parallel()
	users := directoryWithCosts(12, 5, 12)
	costs := func() (got []int) {
		for pick := range uint64(6) {
			got = append(got, users.costOf(pick))
		}
		return got
	}
	if diff := cmp.Diff([]int{5, 12, 12, 5, 12, 12}, costs()); diff != "" {
		t.Errorf("costs (-want +got):\n%s", diff)
	}
	users.set(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "user0"}, Data: map[string][]byte{passwordHashKey: fakeHash(7)}},
	)
	users.remove("user1")
	users.remove("never-there")
	if diff := cmp.Diff([]int{7, 12, 7, 12, 7, 12}, costs()); diff != "" {
		t.Errorf("costs after changes (-want +got):\n%s", diff)
	}
}

func TestVerifyBoundsTheWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const parallel, queued, attempts = 2, 3, 10
		var mu sync.Mutex
		running, most := 0, 0
		compare := func(_, _ []byte) error {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		}
		v, err := newVerifier(directoryWithCosts(5), compare, parallel, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		v.maxQueued = queued
		results := make(chan error, attempts)
		for range attempts {
			go func() {
				_, err := v.verify(t.Context(), "user0", "x")
				results <- err
			}()
		}
		busy := 0
		for range attempts {
			if err := <-results; errors.Is(err, errBusy) {
				busy++
			} else if err != nil {
				t.Error(err)
			}
		}
		if most != parallel {
			t.Errorf("want %d comparisons at once, got %d", parallel, most)
		}
		if want := attempts - parallel - queued; busy != want {
			t.Errorf("want %d refused attempts, got %d", want, busy)
		}
		if found, err := v.verify(t.Context(), "user0", "x"); found == nil || err != nil {
			t.Errorf("after the flood: want the user, got %v, %v", found, err)
		}
	})
}

func TestVerifyGivesUpInTheQueue(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		cancel time.Duration // when the client goes away
		want   time.Duration
	}{
		{name: "leaves when the client does", cancel: time.Second, want: time.Second},
		{name: "leaves when its patience ends", cancel: time.Hour, want: 10 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				v, err := newVerifier(directoryWithCosts(5), bcrypt.CompareHashAndPassword, 1, rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				v.slots <- struct{}{}
				ctx, cancel := context.WithTimeout(t.Context(), test.cancel)
				defer cancel()
				began := time.Now()
				if _, err := v.verify(ctx, "user0", "x"); !errors.Is(err, errBusy) {
					t.Errorf("want errBusy, got %v", err)
				}
				if got := time.Since(began); got != test.want {
					t.Errorf("want to wait %v, waited %v", test.want, got)
				}
				if got := v.waiting.Load(); got != 0 {
					t.Errorf("%d still counted as waiting", got)
				}
			})
		})
	}
}

func TestComparisonsLeaveCoresFree(t *testing.T) {
	t.Parallel()
	for cores, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 16: 8} {
		if got := comparisonsAtOnce(cores); got != want {
			t.Errorf("%d cores: want %d comparisons at once, got %d", cores, want, got)
		}
	}
}
