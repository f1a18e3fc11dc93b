package fleet

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pinniped-toolkit/pinniped/internal/cli/handed"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Options say what Run does.
type Options struct {
	Places []Place
	Into   Destination // nil: items are changed where they are
	// IntoPlace, if set, is changed instead of Places: what leads there to a cluster of Places gets its CA bundle,
	// whatever it trusts now. Trust comes from the kubeconfigs in Places.
	IntoPlace Place
	Contexts  []string // see Files.Contexts
	Admins    []Admin
	// CredentialIssuer is the name of the CredentialIssuers that admins read; empty for the only one.
	CredentialIssuer string
	Resolve          func(ctx context.Context, host string) ([]netip.Addr, error)
	Roots            *x509.CertPool // the system roots; nil for those of this machine

	Concurrency    int
	ClusterTimeout time.Duration // for all tries of one cluster
	Retries        int
	MaxFailures    int // clusters and kubeconfigs that may fail; 0 for any number
	ExpectedCAs    []string
	AllowOlder     bool
	DryRun         bool
	Journal        *Journal
	Progress       *ui.Progress
	Now            func() time.Time
	Sleep          func(context.Context, time.Duration)
}

// Result is what came of a run.
type Result struct {
	Clusters []*Cluster
	Items    []*ItemResult
	DryRun   bool
	Resumed  bool // a run that was interrupted
	Started  time.Time
	Took     time.Duration
}

// ItemResult is the outcome for one kubeconfig.
type ItemResult struct {
	Item    *Item
	Outcome Outcome
	Err     error
	Entries []kubeconfig.Entry
	Changes []kubeconfig.Change // made, or to be made
}

// Outcome is what was done with a kubeconfig.
type Outcome string

// The outcomes.
const (
	Rotated   Outcome = "rotated"
	Current   Outcome = "current"
	Skipped   Outcome = "skipped"
	Unrelated Outcome = "unrelated"
	Failed    Outcome = "failed"
	NotDone   Outcome = "notDone" // the run ended before its turn
)

// CodeClusterFailed is the code of entries whose cluster could not be asked.
const CodeClusterFailed kubeconfig.SkipCode = "ClusterFailed"

// TooManyError means that more has failed than MaxFailures.
type TooManyError struct {
	Failures, Max int
	Untouched     bool // no kubeconfig was changed
}

func (e *TooManyError) Error() string {
	text := fmt.Sprintf("stopped after %d failures (--max-failures %d)", e.Failures, e.Max)
	if e.Untouched {
		text += "; no kubeconfig was changed"
	}
	return text
}

// run is one run.
type run struct {
	Options
	items    []*Item
	clusters []*Cluster
	admins   []*Cluster // by the administrators' kubeconfigs
	failures atomic.Int64
	result   *Result
}

// Run rotates a fleet. The result is never nil; with an error it is what was done until then.
func Run(ctx context.Context, o Options) (*Result, error) {
	if o.Sleep == nil {
		o.Sleep = func(ctx context.Context, d time.Duration) {
			select {
			case <-ctx.Done():
			case <-time.After(d):
			}
		}
	}
	r := &run{Options: o, result: &Result{DryRun: o.DryRun, Started: o.Now()}}
	err := r.run(ctx)
	r.report()
	r.result.Took = o.Now().Sub(r.result.Started)
	if err == nil {
		err = o.Journal.finish()
	}
	return r.result, err
}

func (r *run) run(ctx context.Context) error {
	for _, place := range r.Places {
		items, err := place.List(ctx)
		if err != nil {
			return err
		}
		r.items = append(r.items, items...)
	}
	if err := r.resume(ctx); err != nil {
		return err
	}
	r.clusters = group(r.items)
	if err := r.askAll(ctx); err != nil {
		return err
	}
	targets := r.targets()
	if r.IntoPlace != nil {
		items, err := r.IntoPlace.List(ctx)
		if err != nil {
			return err
		}
		targets = r.targetsFor(items)
		r.items = items
	}
	return r.changeAll(ctx, targets)
}

// resume marks what an interrupted run has finished, and removes what it has left behind.
func (r *run) resume(ctx context.Context) error {
	if r.Journal == nil || r.Journal.Interrupted == "" || r.DryRun {
		return nil
	}
	r.result.Resumed = true
	written := map[string]string{}
	for _, one := range r.Journal.items() {
		if one.item.Kind == kindFile {
			written[one.item.ID] = one.after
		}
	}
	done := 0
	for _, item := range r.items {
		if item.Kind != kindFile {
			continue
		}
		r.clear(ctx, item)
		content, err := os.ReadFile(item.ID)
		if item.done = err == nil && hashOf(content) == written[item.ID]; item.done {
			done++
		}
	}
	r.Progress.Info("Going on with the run that was interrupted: %d of %d kubeconfigs are done", done, len(r.items))
	return nil
}

// clear removes what was left behind by the process that was killed.
func (r *run) clear(ctx context.Context, item *Item) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := kubeconfig.ClearLeftovers(ctx, item.ID, r.Journal.Owner(), r.Journal.dead); err != nil {
		r.Progress.Warn("clearing up after the run that was interrupted: %v", err)
	}
}

// askAll finds out what the clusters advertise: first by the administrators' kubeconfigs, then, what is left, at their
// endpoints.
func (r *run) askAll(ctx context.Context) error {
	r.askAdmins(ctx)
	var left []*Cluster
	for _, cluster := range r.clusters {
		switch {
		case cluster.skip:
			cluster.Outcome = ClusterAsked
		case !r.claimed(cluster):
			left = append(left, cluster)
		}
	}
	asker := asker{
		Policy: handed.Policy{
			Now: r.Now, Roots: r.Roots, AllowOlder: r.AllowOlder, Expected: r.ExpectedCAs,
		},
		deadline: r.ClusterTimeout, retries: r.Retries, sleep: r.Sleep,
	}
	r.each(ctx, left, "clusters asked", asker.ask)
	return r.over(ctx, true)
}

// claimed takes over what an administrator's kubeconfig told about a cluster.
func (r *run) claimed(cluster *Cluster) bool {
	for _, admin := range r.admins {
		if admin.Outcome != ClusterAsked {
			continue
		}
		leads := slices.ContainsFunc(cluster.trusts, func(t kubeconfig.Trust) bool { return admin.target.Leads(t) })
		if leads {
			cluster.Source, cluster.Outcome = SourceAdmin, ClusterAsked
			cluster.CABundle, cluster.Tries, cluster.Took = admin.CABundle, admin.Tries, admin.Took
			return true
		}
	}
	return false
}

// each calls ask for clusters, a few at a time, and shows how far that is. It stops when too much has failed.
func (r *run) each(ctx context.Context, clusters []*Cluster, what string, ask func(context.Context, *Cluster)) {
	if len(clusters) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bar := r.Progress.Bar(len(clusters), r.Concurrency, what)
	defer bar.End()
	var group errgroup.Group
	group.SetLimit(r.Concurrency)
	for _, cluster := range clusters {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			ask(ctx, cluster)
			failed := cluster.Outcome == ClusterFailed
			if failed && ctx.Err() != nil { // it did not fail, the run ended
				cluster.Outcome, cluster.Err = ClusterNotAsked, nil
				return nil
			}
			bar.Step(failed)
			if failed && r.failed() {
				cancel()
			}
			return nil
		})
	}
	_ = group.Wait()
}

// failed counts one more failure, and says whether these are too many.
func (r *run) failed() bool {
	return int(r.failures.Add(1)) > r.MaxFailures && r.MaxFailures > 0
}

// over returns an error when the run has to end.
func (r *run) over(ctx context.Context, untouched bool) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rotating kubeconfigs: %w", err)
	}
	if n := int(r.failures.Load()); n > r.MaxFailures && r.MaxFailures > 0 {
		return &TooManyError{Failures: n, Max: r.MaxFailures, Untouched: untouched}
	}
	return nil
}

// changeAll changes the items.
func (r *run) changeAll(ctx context.Context, targets [][]kubeconfig.Target) error {
	results := make([]*ItemResult, len(r.items))
	ctx2, cancel := context.WithCancel(ctx)
	defer cancel()
	bar := r.Progress.Bar(len(r.items), max(len(r.items)/10, 100), "kubeconfigs done")
	defer bar.End()
	var group errgroup.Group
	group.SetLimit(min(r.Concurrency, 16))
	var mu sync.Mutex
	var stopped error
	for i, item := range r.items {
		group.Go(func() error {
			if ctx2.Err() != nil {
				return nil
			}
			one, err := r.change(ctx2, item, targets[i])
			mu.Lock()
			defer mu.Unlock()
			if err != nil && stopped == nil { // the journal cannot be written: nothing more may be changed
				stopped = err
				cancel()
			}
			results[i] = one
			bar.Step(one.Outcome == Failed)
			if one.Outcome == Failed && r.failed() {
				cancel()
			}
			return nil
		})
	}
	_ = group.Wait()
	r.result.Items = results
	if stopped != nil {
		return stopped
	}
	return r.over(ctx, false)
}

// targets returns, for each item, what its entries may get.
func (r *run) targets() [][]kubeconfig.Target {
	all := make([][]kubeconfig.Target, len(r.items))
	for i := range all {
		for _, admin := range r.admins {
			if admin.Outcome == ClusterAsked {
				all[i] = append(all[i], *admin.target)
			}
		}
	}
	for _, cluster := range r.clusters {
		if cluster.target == nil {
			continue
		}
		for i, m := range cluster.members {
			if i == 0 || cluster.members[i-1].item != m.item {
				all[m.item] = append(all[m.item], *cluster.target)
			}
		}
	}
	return all
}

// targetsFor returns what the entries of items may get that are not those from which trust comes: the CA bundle of
// every cluster which at least one kubeconfig in Places verifies.
func (r *run) targetsFor(items []*Item) [][]kubeconfig.Target {
	var proven []kubeconfig.Target
	for _, admin := range r.admins {
		if admin.Outcome == ClusterAsked {
			proven = append(proven, *admin.target)
		}
	}
	for _, cluster := range r.clusters {
		if cluster.target == nil {
			continue
		}
		if slices.ContainsFunc(cluster.trusts, func(t kubeconfig.Trust) bool { return cluster.target.Accepts(t) == nil }) {
			target := *cluster.target
			target.Accepts = nil
			proven = append(proven, target)
		}
	}
	all := make([][]kubeconfig.Target, len(items))
	for i := range all {
		all[i] = proven
	}
	return all
}

var errJournal = errors.New("the journal cannot be written")

// change changes one item. The error means that nothing more may be changed.
func (r *run) change(ctx context.Context, item *Item, targets []kubeconfig.Target) (*ItemResult, error) {
	result := &ItemResult{Item: item}
	switch {
	case item.Missing: // what is not there cannot be used either
		result.Outcome, result.Err = Skipped, item.Err
		return result, nil
	case item.Err != nil:
		result.Outcome, result.Err = Failed, item.Err
		return result, nil
	case item.done:
		result.Outcome = Current
		return result, nil
	}
	written := false
	update := Update{
		DryRun: r.DryRun || r.Into != nil, Owner: r.Journal.Owner(),
		Change: func(content []byte) (*kubeconfig.Rotation, error) {
			rotation, err := rotateContexts(content, r.Contexts, targets)
			if err != nil || item.Kind != kindFile {
				return rotation, err
			}
			return rotation, kubeconfig.LookIntoCAFiles(item.ID, content, rotation, targets...)
		},
		Before: func(content []byte, made *kubeconfig.Rotation) error {
			if err := r.Journal.intent(item, content, made); err != nil {
				return fmt.Errorf("%w: %w", errJournal, err)
			}
			written = true
			return nil
		},
	}
	rotation, err := item.place.Update(ctx, item, update)
	if err == nil && written {
		if err := r.Journal.note(recordDone, item); err != nil {
			return r.outcome(item, rotation), fmt.Errorf("%w: %w", errJournal, err)
		}
	}
	if err == nil && r.Into != nil && !r.DryRun {
		err = r.Into.Put(ctx, item, rotation.Content)
	}
	if err != nil {
		result.Outcome, result.Err = Failed, err
		if errors.Is(err, errJournal) {
			return result, err
		}
		return result, nil
	}
	return r.outcome(item, rotation), nil
}

// outcome sums up what was done with an item, its clusters that could not be asked included.
func (r *run) outcome(item *Item, rotation *kubeconfig.Rotation) *ItemResult {
	result := &ItemResult{Item: item, Entries: slices.Clone(rotation.Entries), Changes: rotation.Changes}
	for _, trust := range item.trusts {
		named := func(e kubeconfig.Entry) bool { return e.Kind == trust.Kind && e.Name == trust.Name }
		cluster := r.clusterOf(trust)
		if cluster == nil || cluster.Outcome != ClusterFailed || slices.ContainsFunc(result.Entries, named) {
			continue
		}
		entry := kubeconfig.Entry{Kind: trust.Kind, Name: trust.Name, Outcome: kubeconfig.Skipped}
		entry.Code, entry.Reason = CodeClusterFailed, cluster.Err.Error()
		if trust.Insecure {
			entry.Code, entry.Reason = kubeconfig.SkipInsecure, "it has insecure-skip-tls-verify"
		}
		result.Entries = append(result.Entries, entry)
	}
	result.Outcome = Unrelated
	for _, entry := range result.Entries {
		outcome := map[kubeconfig.Outcome]Outcome{
			kubeconfig.Rotated: Rotated, kubeconfig.Current: Current, kubeconfig.Skipped: Skipped,
		}[entry.Outcome]
		if rank(outcome) > rank(result.Outcome) {
			result.Outcome = outcome
		}
	}
	return result
}

func rank(o Outcome) int { return slices.Index([]Outcome{Unrelated, Current, Skipped, Rotated}, o) }

func (r *run) clusterOf(trust kubeconfig.Trust) *Cluster {
	key, ok := canonical(trust.Server)
	if !ok {
		return nil
	}
	for _, cluster := range r.clusters {
		if cluster.key == key {
			return cluster
		}
	}
	return nil
}

// report fills in the result what was not reached.
func (r *run) report() {
	r.result.Clusters = r.clusters
	for _, admin := range r.admins {
		if admin.Outcome != ClusterAsked { // the others are told with the clusters that they stand for
			r.result.Clusters = append(r.result.Clusters, admin)
		}
	}
	if r.result.Items == nil {
		r.result.Items = make([]*ItemResult, len(r.items))
	}
	for i, item := range r.items {
		if r.result.Items[i] == nil {
			r.result.Items[i] = &ItemResult{Item: item, Outcome: NotDone}
		}
	}
}
