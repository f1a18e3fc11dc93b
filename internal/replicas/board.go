package replicas

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1ac "k8s.io/client-go/applyconfigurations/coordination/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// How often a replica shows that it lives, and when it counts as gone. Nodes do it in the same way and rhythm.
const (
	renewEvery = 10 * time.Second
	goneAfter  = 40 * time.Second
	// removeAfter is when the leader removes the Lease of a replica that is gone.
	removeAfter = 10 * time.Minute
	// writeEvery bounds how often one replica writes, however often its report changes.
	writeEvery = time.Second
	// maxProblem bounds what a replica tells about itself, in bytes.
	maxProblem = 1024
)

// The Leases of replicas: the label by which they are found, and the annotation with the Report.
const (
	labelOf          = "credentialissuer.pinniped.dev/replica-of"
	annotationReport = "credentialissuer.pinniped.dev/report"
	fieldManager     = "pinniped-agent"
)

// Report is what a replica says about itself.
type Report struct {
	// Name is the name of the replica's pod.
	Name string `json:"-"`
	// SHA256 is the fingerprint of the certificate that it serves, "" while it serves none.
	SHA256 string `json:"sha256,omitempty"`
	// Problem says why it does not serve what the CredentialIssuer asks for, "" when it does.
	Problem string `json:"problem,omitempty"`
}

// Options is what a Board needs. All fields but Labels are required.
type Options struct {
	Leases coordinationv1client.LeaseInterface // of the agent's namespace
	// Group is common to all replicas and begins the names of their Leases.
	Group string
	// Name is this replica's own name.
	Name   string
	Labels map[string]string // of the Lease, besides its own
	// IsLeader says whether this replica may remove what others left behind.
	IsLeader func() bool
	// Changed is called when what Live returns has changed; it must not block.
	Changed func()
	Clock   clock.WithTicker
}

// Board shows every replica's latest Report. It is safe for concurrent use.
type Board struct {
	options Options
	lease   string
	wake    chan struct{}

	mu         sync.Mutex
	own        Report
	published  bool
	others     map[string]seen // by the name of the Lease
	aliveSince time.Time       // since when this replica's own renewals succeed; zero while they fail
	told       []Report        // what Live returned when Changed was called last
}

// seen is a replica's Lease as it was last seen.
type seen struct {
	report Report
	renew  metav1.MicroTime
	at     time.Time // of this replica's clock, when renew was new
	lease  *coordinationv1.Lease
}

// New returns a Board. Nothing is written before Publish, or seen before Run.
func New(options Options) *Board {
	sum := sha256.Sum256([]byte(options.Name))
	return &Board{
		options: options,
		// A hash, because a replica outside a pod may have a name that no object can have.
		lease:  options.Group + "-replica-" + hex.EncodeToString(sum[:])[:16],
		wake:   make(chan struct{}, 1),
		own:    Report{Name: options.Name},
		others: map[string]seen{},
	}
}

// Publish makes report this replica's own. It returns at once; the others see it soon.
func (b *Board) Publish(report Report) {
	report.Name = b.options.Name
	report.Problem = shorten(report.Problem)
	b.mu.Lock()
	same := b.published && b.own == report
	b.own, b.published = report, true
	b.mu.Unlock()
	if !same {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// Live returns the reports of all replicas that live, this one's always among them, in the order of their names.
func (b *Board) Live() []Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live()
}

func (b *Board) live() []Report {
	all := []Report{b.own}
	now := b.options.Clock.Now()
	for name, other := range b.others {
		if name != b.lease && other.report.Name != b.own.Name && !b.goneFor(other, goneAfter, now) {
			all = append(all, other.report)
		}
	}
	slices.SortFunc(all, func(x, y Report) int { return strings.Compare(x.Name, y.Name) })
	return all
}

// goneFor says whether a replica has not renewed its Lease for so long. Only time in which this replica's own renewals succeeded counts:
// while the API server is away, nobody can renew, and everybody goes on serving. Nobody's clock is compared with another's.
func (b *Board) goneFor(other seen, long time.Duration, now time.Time) bool {
	if b.aliveSince.IsZero() {
		return false
	}
	since := other.at
	if b.aliveSince.After(since) {
		since = b.aliveSince
	}
	return now.Sub(since) > long
}

// Run writes and watches until ctx ends, and then takes this replica's Lease away.
func (b *Board) Run(ctx context.Context) {
	go b.watch(ctx)
	ticker := b.options.Clock.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			b.leave(context.WithoutCancel(ctx))
			return
		case <-b.wake:
		case <-ticker.C():
		}
		b.renew(ctx)
		b.tell()
		b.cleanUp(ctx)
		select {
		case <-ctx.Done():
		case <-b.options.Clock.After(writeEvery):
		}
	}
}

// renew writes this replica's Lease, if there is something to report.
func (b *Board) renew(ctx context.Context) {
	b.mu.Lock()
	report, published := b.own, b.published
	b.mu.Unlock()
	if !published {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	err := b.write(ctx, report)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Could not renew the Lease of this replica", "lease", b.lease, "problem", err.Error())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err != nil:
		b.aliveSince = time.Time{}
	case b.aliveSince.IsZero():
		b.aliveSince = b.options.Clock.Now()
	}
}

func (b *Board) write(ctx context.Context, report Report) error {
	content, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	labels := maps.Clone(b.options.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelOf] = b.options.Group
	lease := coordinationv1ac.Lease(b.lease, "").
		WithLabels(labels).
		WithAnnotations(map[string]string{annotationReport: string(content)}).
		WithSpec(coordinationv1ac.LeaseSpec().
			WithHolderIdentity(b.options.Name).
			WithLeaseDurationSeconds(int32(goneAfter / time.Second)).
			WithRenewTime(metav1.NewMicroTime(b.options.Clock.Now())))
	if _, err := b.options.Leases.Apply(ctx, lease, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
		return fmt.Errorf("applying Lease %q: %w", b.lease, err)
	}
	return nil
}

// leave removes this replica's Lease: whoever stops in order is not missed.
func (b *Board) leave(ctx context.Context) {
	b.mu.Lock()
	published := b.published
	b.mu.Unlock()
	if !published {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := b.options.Leases.Delete(ctx, b.lease, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(2).Info("Could not remove the Lease of this replica", "lease", b.lease, "problem", err.Error())
	}
}

// cleanUp removes, on the leader, the Leases of replicas that were killed.
func (b *Board) cleanUp(ctx context.Context) {
	if !b.options.IsLeader() {
		return
	}
	for _, lease := range b.abandoned() {
		uid, version := lease.UID, lease.ResourceVersion
		err := b.options.Leases.Delete(ctx, lease.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
		if err == nil {
			klog.FromContext(ctx).Info("Removed the Lease of a replica that is gone", "lease", klog.KObj(lease))
		}
	}
}

func (b *Board) abandoned() []*coordinationv1.Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	var abandoned []*coordinationv1.Lease
	now := b.options.Clock.Now()
	for name, other := range b.others {
		if name != b.lease && b.goneFor(other, removeAfter, now) {
			abandoned = append(abandoned, other.lease)
		}
	}
	return abandoned
}

// tell calls Changed if what Live returns is not what it was.
func (b *Board) tell() {
	b.mu.Lock()
	now := b.live()
	same := slices.Equal(now, b.told)
	b.told = now
	b.mu.Unlock()
	if !same {
		b.options.Changed()
	}
}

// shorten cuts text to maxProblem bytes, between characters.
func shorten(text string) string {
	if len(text) <= maxProblem {
		return text
	}
	end := maxProblem - len("…")
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
