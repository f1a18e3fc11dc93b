// Package fleet puts new CA bundles into the kubeconfigs of many clusters: it finds out which clusters they lead to,
// asks each of them once what it publishes, and changes the kubeconfigs where a fleet keeps them.
//
// Every place that has kubeconfigs is a Place, one file each: files, contexts of one big kubeconfig, and Secrets of
// Cluster API, Argo CD and Flux. A cluster is asked at its own endpoint, verified by the CA bundle that a kubeconfig
// has (see internal/trustbundle), or by an administrator's kubeconfig. An unreachable cluster stops no other.
package fleet

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Options say what Run does.
type Options struct {
	Places   []Place
	Contexts []string // see Files.Contexts
	Admins   []Admin
	// Only is true when what leads to other clusters than those of Admins stays as it is.
	Only  bool
	Roots *x509.CertPool // the system roots; nil for those of this machine

	Concurrency    int
	ClusterTimeout time.Duration // for all tries of one cluster
	Retries        int
	ExpectedCAs    []string
	DryRun         bool
	Progress       *ui.Progress
	Now            func() time.Time
	Sleep          func(context.Context, time.Duration)
}

// Result is what came of a run.
type Result struct {
	Clusters []*Cluster
	Items    []*ItemResult
	DryRun   bool
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

// SourceError means that the only source of CA bundles could not be asked. Nothing was changed.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return e.Err.Error() }
func (e *SourceError) Unwrap() error { return e.Err }

// run is one run.
type run struct {
	Options
	items    []*Item
	clusters []*Cluster
	admins   []*Cluster // by the administrators' kubeconfigs
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
	r.clusters = group(r.items)
	if slices.ContainsFunc(r.items, func(item *Item) bool { return item.Err == nil }) {
		if err := r.askAll(ctx); err != nil {
			return err
		}
	}
	return r.changeAll(ctx, r.targets())
}

// askAll finds out what the clusters publish: first by the administrators' kubeconfigs, then, what is left, at their
// endpoints.
func (r *run) askAll(ctx context.Context) error {
	if err := r.askAdmins(ctx); err != nil {
		return err
	}
	var left []*Cluster
	for _, cluster := range r.clusters {
		switch {
		case cluster.skip:
			cluster.Outcome = ClusterAsked
		case r.claimed(cluster):
		case r.Only:
			cluster.Outcome = ClusterUnrelated
		default:
			left = append(left, cluster)
		}
	}
	asker := asker{
		Policy: trustbundle.Policy{
			Now: r.Now, Roots: r.Roots, AllowOlder: len(r.ExpectedCAs) > 0, Expected: r.ExpectedCAs,
		},
		deadline: r.ClusterTimeout, retries: r.Retries, sleep: r.Sleep,
	}
	r.each(ctx, left, "clusters asked", asker.ask)
	return over(ctx)
}

// claimed takes over what an administrator's kubeconfig says about a cluster.
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

// each calls ask for clusters, a few at a time, and shows how far that is.
func (r *run) each(ctx context.Context, clusters []*Cluster, what string, ask func(context.Context, *Cluster)) {
	if len(clusters) == 0 {
		return
	}
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
			return nil
		})
	}
	_ = group.Wait()
}

// over returns an error when the run has to end.
func over(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rotating kubeconfigs: %w", err)
	}
	return nil
}

// changeAll changes the items.
func (r *run) changeAll(ctx context.Context, targets [][]kubeconfig.Target) error {
	results := make([]*ItemResult, len(r.items))
	bar := r.Progress.Bar(len(r.items), max(len(r.items)/10, 100), "kubeconfigs done")
	defer bar.End()
	var group errgroup.Group
	group.SetLimit(min(r.Concurrency, 16))
	for i, item := range r.items {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			results[i] = r.change(ctx, item, targets[i])
			bar.Step(results[i].Outcome == Failed)
			return nil
		})
	}
	_ = group.Wait()
	r.result.Items = results
	return over(ctx)
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

// change changes one item.
func (r *run) change(ctx context.Context, item *Item, targets []kubeconfig.Target) *ItemResult {
	switch {
	case item.Missing: // what is not there cannot be used either
		return &ItemResult{Item: item, Outcome: Skipped, Err: item.Err}
	case item.Err != nil:
		return &ItemResult{Item: item, Outcome: Failed, Err: item.Err}
	}
	rotation, err := item.place.Update(ctx, item, Update{
		DryRun: r.DryRun,
		Change: func(content []byte) (*kubeconfig.Rotation, error) {
			rotation, err := rotateContexts(content, r.Contexts, targets)
			if err != nil || item.Kind != kindFile {
				return rotation, err
			}
			return rotation, kubeconfig.CheckCAFiles(item.ID, content, rotation, targets...)
		},
	})
	if err != nil {
		return &ItemResult{Item: item, Outcome: Failed, Err: err}
	}
	return r.outcome(item, rotation)
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
		if admin.Outcome != ClusterAsked &&
			admin.Outcome != ClusterUnrelated { // the others are told with the clusters that they stand for
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
