// Package replicas is the registry in which the agent's replicas publish what they serve.
//
// Each replica owns a Lease with its Report in an annotation; see docs/adr/0005. It writes the Lease every ten seconds
// as a heartbeat, and when its report changes, at most once a second. A replica that has not renewed its Lease for
// forty seconds counts as gone.
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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	coordinationv1ac "k8s.io/client-go/applyconfigurations/coordination/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// The heartbeat interval and timeout are those of nodes.
const (
	renewEvery = 10 * time.Second
	goneAfter  = 40 * time.Second
	// removeAfter is when the leader deletes the Lease of a replica that is gone.
	removeAfter = 10 * time.Minute
	// writeEvery limits how often a replica writes when its report changes.
	writeEvery = time.Second
	// maxProblem limits Problem and Signer of a Report, in bytes.
	maxProblem = 1024
)

// The label by which Leases of replicas are found, and the annotation with the Report.
const (
	labelOf          = "credentialissuer.pinniped.dev/replica-of"
	annotationReport = "credentialissuer.pinniped.dev/report"
	fieldManager     = "pinniped-agent"
)

// Report is the state of a replica.
type Report struct {
	// Name is the name of the replica's pod.
	Name string `json:"-"`
	// SHA256 is the fingerprint of the certificate that it serves, or "".
	SHA256 string `json:"sha256,omitempty"`
	// Problem says why it does not serve what the CredentialIssuer asks for, or "" if it does.
	Problem string `json:"problem,omitempty"`
	// Signer says why it cannot use the cluster's own signer, or "" if it can.
	Signer string `json:"signer,omitempty"`
	// Used says which revisions clients used at this replica, and when.
	Used string `json:"used,omitempty"`
}

// Options are the options of New. All fields except Labels are required.
type Options struct {
	Leases coordinationv1client.LeaseInterface // of the agent's namespace
	// Group is common to all replicas and is the prefix of the names of their Leases.
	Group string
	// Name is the name of this replica.
	Name   string
	Labels map[string]string // additional labels of the Lease
	// IsLeader reports whether this replica deletes Leases of replicas that are gone.
	IsLeader func() bool
	// Changed is called when the result of Live changes; it must not block.
	Changed func()
	Clock   clock.WithTicker
}

// Registry holds the latest Report of every replica. It is safe for concurrent use.
type Registry struct {
	options Options
	lease   string
	wake    chan struct{}

	mu         sync.Mutex
	own        Report
	published  bool
	uid        types.UID           // of this replica's Lease; "" until it is written
	others     map[string]observed // by name of the Lease
	aliveSince time.Time           // since when this replica's renewals succeed; zero while they fail
	reported   []Report            // the result of Live at the last call of Changed
}

// observed is the last observed Lease of a replica.
type observed struct {
	report Report
	renew  metav1.MicroTime
	at     time.Time // when renew was first observed, by this replica's clock
	lease  *coordinationv1.Lease
}

// New returns a Registry. It writes nothing before Publish, and observes nothing before Run.
func New(options Options) *Registry {
	sum := sha256.Sum256([]byte(options.Name))
	return &Registry{
		options: options,
		// A hash, because outside a pod the name may be invalid as an object name.
		lease:  options.Group + "-replica-" + hex.EncodeToString(sum[:])[:16],
		wake:   make(chan struct{}, 1),
		own:    Report{Name: options.Name},
		others: map[string]observed{},
	}
}

// Publish sets this replica's report, except Signer. It returns at once; the report is written in the background.
func (r *Registry) Publish(report Report) {
	report.Name = r.options.Name
	report.Problem = shorten(report.Problem)
	r.mu.Lock()
	report.Signer = r.own.Signer
	same := r.published && r.own == report
	r.own, r.published = report, true
	r.mu.Unlock()
	r.wakeUnless(same)
}

// PublishSigner sets Signer in this replica's report.
func (r *Registry) PublishSigner(problem string) {
	problem = shorten(problem)
	r.mu.Lock()
	same := r.own.Signer == problem
	r.own.Signer = problem
	r.mu.Unlock()
	r.wakeUnless(same)
}

// Signers returns Signer of the other replicas, one line for each that has one.
func (r *Registry) Signers() string {
	var said strings.Builder
	for _, report := range r.Live() {
		if report.Name != r.options.Name && report.Signer != "" {
			said.WriteString(report.Name + ": " + report.Signer + "\n")
		}
	}
	return said.String()
}

func (r *Registry) wakeUnless(same bool) {
	if !same {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Live returns the reports of all live replicas, sorted by name. It always includes this replica's own.
func (r *Registry) Live() []Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live()
}

func (r *Registry) live() []Report {
	all := []Report{r.own}
	now := r.options.Clock.Now()
	for name, other := range r.others {
		if name != r.lease && other.report.Name != r.own.Name && !r.goneFor(other, goneAfter, now) {
			all = append(all, other.report)
		}
	}
	slices.SortFunc(all, func(x, y Report) int { return strings.Compare(x.Name, y.Name) })
	return all
}

// goneFor reports whether a replica has not renewed its Lease for that long. Only time in which this replica could
// renew its own counts: while the API server is unavailable, replicas cannot renew but still serve. Clocks of different
// replicas are never compared.
func (r *Registry) goneFor(other observed, long time.Duration, now time.Time) bool {
	if r.aliveSince.IsZero() {
		return false
	}
	return min(now.Sub(other.at), now.Sub(r.aliveSince)) > long
}

// Run renews this replica's Lease and watches those of the others until ctx ends. Then it deletes its own Lease.
func (r *Registry) Run(ctx context.Context) {
	go r.watch(ctx)
	ticker := r.options.Clock.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			r.leave(context.WithoutCancel(ctx))
			return
		case <-r.wake:
		case <-ticker.C():
		}
		r.renew(ctx)
		r.notify()
		r.cleanUp(ctx)
		select {
		case <-ctx.Done():
		case <-r.options.Clock.After(writeEvery):
		}
	}
}

// renew writes this replica's Lease, once there is a report.
func (r *Registry) renew(ctx context.Context) {
	r.mu.Lock()
	report, published := r.own, r.published
	r.mu.Unlock()
	if !published {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	err := r.write(ctx, report)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Failed to renew this replica's Lease", "lease", r.lease, "problem", err.Error())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.aliveSince = time.Time{}
	case r.aliveSince.IsZero():
		r.aliveSince = r.options.Clock.Now()
	}
}

func (r *Registry) write(ctx context.Context, report Report) error {
	content, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	lease := coordinationv1ac.Lease(r.lease, "").
		WithLabels(r.options.Labels).
		WithLabels(map[string]string{labelOf: r.options.Group}).
		WithAnnotations(map[string]string{annotationReport: string(content)}).
		WithSpec(coordinationv1ac.LeaseSpec().
			WithHolderIdentity(r.options.Name).
			WithLeaseDurationSeconds(int32(goneAfter / time.Second)).
			WithRenewTime(metav1.NewMicroTime(r.options.Clock.Now())))
	applied, err := r.options.Leases.Apply(ctx, lease, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("applying Lease %q: %w", r.lease, err)
	}
	r.mu.Lock()
	r.uid = applied.UID
	r.mu.Unlock()
	return nil
}

// leave deletes this replica's Lease, so that the others need not wait for the timeout. It does not delete another
// object of that name.
func (r *Registry) leave(ctx context.Context) {
	r.mu.Lock()
	uid := r.uid
	r.mu.Unlock()
	if uid == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := r.options.Leases.Delete(ctx, r.lease,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(2).Info("Failed to delete this replica's Lease", "lease", r.lease, "problem", err.Error())
	}
}

// cleanUp deletes, on the leader, the Leases of replicas that were killed.
func (r *Registry) cleanUp(ctx context.Context) {
	if !r.options.IsLeader() {
		return
	}
	for _, lease := range r.abandoned() {
		uid, version := lease.UID, lease.ResourceVersion
		if err := r.options.Leases.Delete(ctx, lease.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		}); err == nil {
			klog.FromContext(ctx).Info("Deleted the Lease of a stopped replica", "lease", klog.KObj(lease))
		}
	}
}

func (r *Registry) abandoned() []*coordinationv1.Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	var abandoned []*coordinationv1.Lease
	now := r.options.Clock.Now()
	for name, other := range r.others {
		if name != r.lease && r.goneFor(other, removeAfter, now) {
			abandoned = append(abandoned, other.lease)
		}
	}
	return abandoned
}

// notify calls Changed if the result of Live has changed.
func (r *Registry) notify() {
	r.mu.Lock()
	now := r.live()
	same := slices.Equal(now, r.reported)
	r.reported = now
	r.mu.Unlock()
	if !same {
		r.options.Changed()
	}
}

// shorten truncates text to maxProblem bytes, between characters.
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

// watch watches the Leases of all replicas until ctx ends.
func (r *Registry) watch(ctx context.Context) {
	selector := labels.SelectorFromSet(labels.Set{labelOf: r.options.Group}).String()
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = selector
			return r.options.Leases.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			options.LabelSelector = selector
			return r.options.Leases.Watch(ctx, options)
		},
	}
	cache.NewReflectorWithOptions(from, &coordinationv1.Lease{}, (*store)(r), cache.ReflectorOptions{
		Name: "leases of " + r.options.Group,
		// Retries fast after an outage, like internal/informer.
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 5 * time.Second, Steps: 6, Factor: 2, Jitter: 0.5},
	}).RunWithContext(ctx)
}

// store makes the Registry a cache.ReflectorStore.
type store Registry

var _ cache.ReflectorStore = &store{}

// Add implements cache.ReflectorStore.
func (s *store) Add(object any) error { return s.Update(object) }

// Update implements cache.ReflectorStore.
func (s *store) Update(object any) error { return s.change(object, (*Registry).observe) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(object any) error {
	return s.change(object, func(r *Registry, lease *coordinationv1.Lease) { delete(r.others, lease.Name) })
}

func (s *store) change(object any, do func(*Registry, *coordinationv1.Lease)) error {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("got a %T instead of a Lease", object)
	}
	r := (*Registry)(s)
	r.mu.Lock()
	do(r, lease)
	r.mu.Unlock()
	r.notify()
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *store) Replace(list []any, _ string) error {
	r := (*Registry)(s)
	r.mu.Lock()
	there := map[string]bool{}
	for _, object := range list {
		if lease, ok := object.(*coordinationv1.Lease); ok {
			there[lease.Name] = true
			r.observe(lease)
		}
	}
	maps.DeleteFunc(r.others, func(name string, _ observed) bool { return !there[name] })
	r.mu.Unlock()
	r.notify()
	return nil
}

// Resync implements cache.ReflectorStore.
func (*store) Resync() error { return nil }

// observe records a Lease. A report that cannot be read, such as that of a newer agent, still shows that the replica is
// alive.
func (r *Registry) observe(lease *coordinationv1.Lease) {
	now := observed{at: r.options.Clock.Now(), lease: lease}
	if err := json.Unmarshal([]byte(lease.Annotations[annotationReport]), &now.report); err != nil {
		now.report = Report{Problem: "the report of this replica is in a format that the leader cannot read"}
	}
	now.report.Name = ptr.Deref(lease.Spec.HolderIdentity, lease.Name)
	now.report.Problem = shorten(now.report.Problem)
	if lease.Spec.RenewTime != nil {
		now.renew = *lease.Spec.RenewTime
	}
	if before, ok := r.others[lease.Name]; ok && before.renew.Equal(&now.renew) {
		now.at = before.at
	}
	r.others[lease.Name] = now
}
