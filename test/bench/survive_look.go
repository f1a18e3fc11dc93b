package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

// As in the shipped manifests, and Prometheus' own.
const (
	probePeriod   = 2 * time.Second
	readyTimeout  = 2 * time.Second
	liveTimeout   = 15 * time.Second
	scrapeTimeout = 10 * time.Second
)

const (
	lookPeriod = 250 * time.Millisecond
	// lookTimeout is longer than the API server itself takes to find an aggregated API unavailable.
	lookTimeout = 10 * time.Second
)

// looks are what others see of the replicas: the kubelet, Prometheus, and the API server.
type looks struct {
	survival                          *survival
	probes, scrapes, services, status looked
	life                              context.Context //nolint:containedctx // of all looks
	cancel                            context.CancelFunc
	busy                              sync.WaitGroup

	mu      sync.Mutex
	probed  map[*devinstall.Agent]context.CancelFunc
	holders []string // of the agents' Lease, one after the other
	most    int64    // memory of a replica
}

// looked counts looks of one kind.
type looked struct {
	asked, failed, slowest atomic.Int64
	inARow                 atomic.Int64 // most that failed one after the other, of one look that is repeated
	first                  atomic.Pointer[error]
}

// at looks once, and reports whether what it saw was wrong. A look that ended because ctx did is none.
func (l *looked) at(ctx context.Context, timeout time.Duration, do func(ctx context.Context) error) (failed bool) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	asked := time.Now()
	err := do(limited)
	took := time.Since(asked)
	if ctx.Err() != nil {
		return false
	}
	l.asked.Add(1)
	keepGreatest(&l.slowest, int64(took))
	if err != nil {
		l.failed.Add(1)
		l.first.CompareAndSwap(nil, &err)
	}
	return err != nil
}

// again looks until ctx ends.
func (l *looked) again(ctx context.Context, period, timeout time.Duration, do func(ctx context.Context) error) {
	var inARow int64
	for more := true; more; more = sleep(ctx, period) {
		inARow++
		if !l.at(ctx, timeout, do) {
			inARow = 0
		}
		keepGreatest(&l.inARow, inARow)
	}
}

// keepGreatest keeps the greatest of several numbers.
func keepGreatest(greatest *atomic.Int64, to int64) {
	for was := greatest.Load(); to > was && !greatest.CompareAndSwap(was, to); {
		was = greatest.Load()
	}
}

// look begins to look at what the API server says of the agents.
func (s *survival) look(ctx context.Context) *looks {
	seen := &looks{survival: s, probed: map[*devinstall.Agent]context.CancelFunc{}}
	seen.life, seen.cancel = context.WithCancel(ctx)
	again := func(what *looked, do func(ctx context.Context) error) {
		seen.busy.Go(func() { what.again(seen.life, lookPeriod, lookTimeout, do) })
	}
	again(&seen.services, s.available)
	again(&seen.status, s.good)
	again(&looked{}, seen.findLeader)
	return seen
}

// probe begins to probe a replica as its kubelet does, and to scrape it.
func (l *looks) probe(ctx context.Context, replica *devinstall.Agent) {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(l.life, cancel)
	l.mu.Lock()
	l.probed[replica] = cancel
	l.mu.Unlock()
	again := func(what *looked, timeout time.Duration, do func(ctx context.Context) error) {
		l.busy.Go(func() { what.again(ctx, probePeriod, timeout, do) })
	}
	again(&l.probes, readyTimeout, replica.Ready)
	again(&l.probes, liveTimeout, replica.Live)
	again(&l.scrapes, scrapeTimeout, func(ctx context.Context) error {
		l.measure(replica)
		return scrape(ctx, replica)
	})
}

// leave ends the looks at a replica, as it is about to stop.
func (l *looks) leave(replica *devinstall.Agent) {
	l.measure(replica)
	l.mu.Lock()
	defer l.mu.Unlock()
	if cancel := l.probed[replica]; cancel != nil {
		cancel()
	}
	delete(l.probed, replica)
}

func (l *looks) measure(replica *devinstall.Agent) {
	if !replica.Running() {
		return
	}
	peak := peakOf(replica)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = max(l.most, peak)
}

func (l *looks) peak() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}

func (l *looks) stop() {
	l.mu.Lock()
	for replica := range l.probed {
		l.mu.Unlock()
		l.leave(replica)
		l.mu.Lock()
	}
	l.mu.Unlock()
	l.cancel()
	l.busy.Wait()
}

// problem is the first thing of each kind that was wrong.
func (l *looks) problem() error {
	var all error
	for what, one := range map[string]*looked{
		"a probe": &l.probes, "a scrape": &l.scrapes, "an aggregated API": &l.services, "the CredentialIssuer": &l.status,
	} {
		if err := one.first.Load(); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", what, *err))
		}
	}
	return all
}

// leaders returns how often another replica has become the leader.
func (l *looks) leaders() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, len(l.holders)-1)
}

func (l *looks) findLeader(ctx context.Context) error {
	lease, err := l.survival.admin.CoordinationV1().
		Leases(devinstall.Namespace).
		Get(ctx, "pinniped-concierge", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.holders); n == 0 || l.holders[n-1] != *lease.Spec.HolderIdentity {
		l.holders = append(l.holders, *lease.Spec.HolderIdentity)
	}
	return nil
}

// scrape asks a replica for its metrics.
func scrape(ctx context.Context, replica *devinstall.Agent) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+replica.MetricsAddress()+"/metrics", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the metrics were answered with %s", answer.Status)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

func apiServices() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
}

// aggregatedAPIs are the names of the APIServices that lead to the agents.
func aggregatedAPIs() []string {
	return []string{"v1alpha1.login.concierge.pinniped.dev", "v1alpha1.identity.concierge.pinniped.dev"}
}

// available returns nil when the API server finds the agents' APIs available.
func (s *survival) available(ctx context.Context) error {
	for _, name := range aggregatedAPIs() {
		service, err := s.dynamic.Resource(apiServices()).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
		for _, item := range conditions {
			condition, _ := item.(map[string]any)
			if condition["type"] == "Available" && condition["status"] != "True" {
				return fmt.Errorf("%s: %v", condition["reason"], condition["message"])
			}
		}
	}
	return nil
}

// good returns nil when the status says that the proxy can be used, and with the certificate that was configured.
func (s *survival) good(ctx context.Context) error {
	issuer, err := s.dynamic.Resource(credentialIssuers()).Get(ctx, devinstall.CredentialIssuer, metav1.GetOptions{})
	if err != nil {
		return err
	}
	strategies, _, _ := unstructured.NestedSlice(issuer.Object, "status", "strategies")
	for _, item := range strategies {
		strategy, _ := item.(map[string]any)
		if strategy["type"] == "ImpersonationProxy" && strategy["status"] != "Success" {
			return fmt.Errorf("%v: %v", strategy["reason"], strategy["message"])
		}
	}
	return nil
}
