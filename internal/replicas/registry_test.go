package replicas

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1ac "k8s.io/client-go/applyconfigurations/coordination/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func leaseOf(name, report string, renew time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "lease-" + name, Annotations: map[string]string{annotationReport: report}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(name), RenewTime: ptr.To(metav1.NewMicroTime(renew))},
	}
}

// TestSigners collects Signer of the other replicas.
func TestSigners(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakeClock(time.Now())
	calls := 0
	b := New(
		Options{Group: "agent", Name: "b", IsLeader: func() bool { return true }, Changed: func() { calls++ }, Clock: now},
	)
	b.PublishSigner("mine")
	b.Publish(Report{SHA256: "1"})
	into := (*store)(b)
	must.Do(t, into.Replace([]any{leaseOf("a", `{"sha256":"1"}`, now.Now())}, "1"))
	if got := b.Signers(); got != "" || b.Live()[1] != (Report{Name: "b", SHA256: "1", Signer: "mine"}) {
		t.Errorf("got %q, %+v", got, b.Live())
	}
	before := calls
	must.Do(t, into.Update(leaseOf("a", `{"sha256":"1","signer":"no response"}`, now.Now())))
	if got := b.Signers(); got != "a: no response\n" || calls != before+1 {
		t.Errorf("got %q, %d calls", got, calls-before)
	}
}

// TestLive tests which replicas count as alive, with a fake clock.
func TestLive(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	theirs := start.Add(-3 * time.Hour) // another replica's clock may be wrong
	now := clocktesting.NewFakeClock(start)
	calls := 0
	b := New(
		Options{Group: "agent", Name: "b", IsLeader: func() bool { return true }, Changed: func() { calls++ }, Clock: now},
	)
	b.Publish(Report{SHA256: "1"})
	into := (*store)(b)
	expect := func(what string, want ...Report) {
		t.Helper()
		if diff := cmp.Diff(want, b.Live()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	own, a, c := Report{
		Name:   "b",
		SHA256: "1",
	}, Report{
		Name:   "a",
		SHA256: "1",
	}, Report{
		Name:    "c",
		Problem: "KeyMismatch: x",
	}

	expect("alone", own)
	must.Do(t, into.Replace(
		[]any{leaseOf("a", `{"sha256":"1"}`, theirs), leaseOf("c", `{"problem":"KeyMismatch: x"}`, theirs)}, "1"))
	expect("it takes no notice of anybody's clock", a, own, c)
	if calls != 1 {
		t.Errorf("%d calls of Changed, want 1", calls)
	}
	must.Do(t, into.Update(leaseOf("a", `{"sha256":"1"}`, theirs.Add(time.Second))))
	if calls != 1 {
		t.Error("it calls Changed for a renewal that changes nothing")
	}

	// No replica can renew while the API server is unavailable.
	now.Step(time.Hour)
	expect("it misses no replica while its own renewals fail", a, own, c)
	b.aliveSince = now.Now()
	now.Step(goneAfter)
	expect("it gives everybody time to come back", a, own, c)
	must.Do(t, into.Update(leaseOf("a", `{"sha256":"1"}`, theirs.Add(2*time.Second))))
	now.Step(time.Second)
	expect("it leaves out who did not come back", a, own)
	if gone := b.abandoned(); len(gone) != 0 {
		t.Errorf("it would remove %v, too early", gone)
	}
	now.Step(removeAfter)
	must.Do(t, into.Update(leaseOf("a", `{"sha256":"1"}`, theirs.Add(3*time.Second))))
	if gone := b.abandoned(); len(gone) != 1 || gone[0].Name != "lease-c" {
		t.Errorf("it would remove %v, want the Lease of c", gone)
	}

	must.Do(t, into.Update(leaseOf("a", `nonsense`, theirs.Add(4*time.Second))))
	expect("it counts who reports in another way",
		Report{Name: "a", Problem: "the report of this replica is in a format that the leader cannot read"}, own)
	must.Do(t, into.Delete(leaseOf("a", "", theirs)))
	expect("it forgets who left", own)
	if err := into.Add("x"); err == nil {
		t.Error("it takes anything for a Lease")
	}

	long := strings.Repeat("ä", maxProblem)
	b.Publish(Report{Problem: long})
	if got := b.Live()[0].Problem; len(got) > maxProblem || !utf8.ValidString(got) {
		t.Errorf("a long problem has %d bytes, valid %v", len(got), utf8.ValidString(got))
	}
}

// TestRegistries runs three replicas on a real API server: each observes the others, one leaves, one is replaced.
func TestRegistries(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{})
	client := must.Get(coordinationv1client.NewForConfig(cluster.AdminConfig()))(t)
	writes := &atomic.Int64{} // of replica one
	start := func(name string) (*Registry, func()) {
		writes := writes
		if name != "one" {
			writes = &atomic.Int64{}
		}
		b := New(Options{
			Leases: counted{client.Leases("default"), writes}, Group: "agent", Name: name, Labels: map[string]string{"app": "x"},
			IsLeader: func() bool { return name == "one" }, Changed: func() {}, Clock: clock.RealClock{},
		})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); b.Run(ctx) }()
		stop := func() { cancel(); <-ended }
		t.Cleanup(stop)
		return b, stop
	}
	expect := func(b *Registry, want ...Report) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			if diff := cmp.Diff(want, b.Live()); diff != "" {
				return fmt.Errorf("the reports (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	one, _ := start("one")
	two, stopTwo := start("two")
	one.Publish(Report{SHA256: "1"})
	expect(one, Report{Name: "one", SHA256: "1"})
	two.Publish(Report{Problem: "no"})
	expect(one, Report{Name: "one", SHA256: "1"}, Report{Name: "two", Problem: "no"})
	two.Publish(Report{SHA256: "1"})
	expect(one, Report{Name: "one", SHA256: "1"}, Report{Name: "two", SHA256: "1"})
	expect(two, Report{Name: "one", SHA256: "1"}, Report{Name: "two", SHA256: "1"})

	byLabel := metav1.ListOptions{LabelSelector: "app=x"}
	if leases, err := client.Leases("default").List(t.Context(), byLabel); err != nil || len(leases.Items) != 2 {
		t.Errorf("the Leases are %+v (%v)", leases, err)
	}
	stopTwo()
	expect(one, Report{Name: "one", SHA256: "1"})
	if _, err := client.Leases("default").Get(t.Context(), two.lease, metav1.GetOptions{}); err == nil {
		t.Error("the Lease of a replica that stopped is still there")
	}

	// However often a report changes, writes are limited, and the latest report is written.
	began, before := time.Now(), writes.Load()
	for i := range 200 {
		one.Publish(Report{SHA256: strconv.Itoa(i)})
		time.Sleep(time.Millisecond) // the load, not a wait
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		lease := must.Get(client.Leases("default").Get(t.Context(), one.lease, metav1.GetOptions{}))(t)
		if !strings.Contains(lease.Annotations[annotationReport], `"199"`) {
			return fmt.Errorf("the latest report was not written: %v", lease.Annotations)
		}
		return nil
	})
	if wrote, limit := writes.Load()-before, int64(time.Since(began)/writeEvery)+2; wrote > limit {
		t.Errorf("it wrote %d times, want at most %d", wrote, limit)
	}
}

// counted counts writes.
type counted struct {
	coordinationv1client.LeaseInterface
	writes *atomic.Int64
}

func (c counted) Apply(
	ctx context.Context, lease *coordinationv1ac.LeaseApplyConfiguration, options metav1.ApplyOptions,
) (*coordinationv1.Lease, error) {
	c.writes.Add(1)
	return c.LeaseInterface.Apply(ctx, lease, options)
}
