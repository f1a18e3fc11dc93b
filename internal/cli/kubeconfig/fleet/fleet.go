// Package fleet puts new CA bundles into the kubeconfigs of many clusters: it finds the clusters in the kubeconfigs,
// reads each cluster's trust bundle once, and changes the kubeconfigs where they are.
//
// A Place holds kubeconfigs: in files, or in Secrets in the formats of Cluster API, Argo CD and Flux. The trust bundle is
// read from the cluster's own endpoint, verified with the CA bundle in a kubeconfig (see internal/trustbundle), or with an
// administrator's kubeconfig. An unreachable cluster does not stop others.
package fleet

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Options are the options of Run.
type Options struct {
	Places   []Place
	Contexts []string // see Files.Contexts
	Admins   []Admin
	// Only leaves entries for clusters other than those of Admins unchanged.
	Only  bool
	Roots *x509.CertPool // nil for the system roots

	Concurrency    int
	ClusterTimeout time.Duration // for all attempts for a cluster
	Retries        int
	ExpectedCAs    []string
	DryRun         bool
	Progress       *ui.Progress
	Now            func() time.Time
	Sleep          func(context.Context, time.Duration)
}

// Result is the result of a run.
type Result struct {
	Clusters []*Cluster
	Items    []*ItemResult
	DryRun   bool
	Took     time.Duration
}

// ItemResult is the result for one kubeconfig.
type ItemResult struct {
	Item    *Item
	Outcome result.FileOutcome
	Err     error
	Entries []kubeconfig.Entry
	Changes []kubeconfig.Change // made, or planned
}

// CodeClusterFailed is the code of entries whose cluster could not be asked.
const CodeClusterFailed kubeconfig.SkipCode = "ClusterFailed"

// SourceError means that the only source of CA bundles failed. Nothing was changed.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return e.Err.Error() }
func (e *SourceError) Unwrap() error { return e.Err }

// run is the state of Run.
type run struct {
	Options
	items    []*Item
	clusters []*Cluster
	byKey    map[string]*Cluster // clusters by canonical URL
	admins   []*Cluster          // from the administrators' kubeconfigs
	result   *Result
}

// Run rotates a fleet. The result is never nil; with an error it has what was done until then.
func Run(ctx context.Context, o Options) (*Result, error) {
	if o.Sleep == nil {
		o.Sleep = func(ctx context.Context, d time.Duration) {
			select {
			case <-ctx.Done():
			case <-time.After(d):
			}
		}
	}
	started := o.Now()
	r := &run{Options: o, result: &Result{DryRun: o.DryRun}}
	err := r.run(ctx)
	r.report()
	r.result.Took = o.Now().Sub(started)
	return r.result, err
}

func (r *run) run(ctx context.Context) error {
	for _, place := range r.Places {
		items, err := place.List(ctx)
		if err != nil {
			return err
		}
		for _, item := range items {
			r.items = append(r.items, item)
			r.result.Items = append(r.result.Items, &ItemResult{Item: item, Outcome: result.FileNotDone})
		}
	}
	r.group()
	if slices.ContainsFunc(r.items, func(item *Item) bool { return item.Err == nil }) {
		if err := r.askAll(ctx); err != nil {
			return err
		}
	}
	return r.changeAll(ctx, r.targets())
}

// askAll reads what the clusters publish: with the administrators' kubeconfigs, and for the other clusters from their
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
	asker := asker{trustbundle.Policy{
		Now: r.Now, Roots: r.Roots, AllowOlder: len(r.ExpectedCAs) > 0, Expected: r.ExpectedCAs,
	}, r.Options}
	r.each(ctx, left, "clusters asked", asker.ask)
	return over(ctx)
}

// claimed copies the result of an administrator's kubeconfig to its cluster, and reports whether there is one.
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

// each calls ask for clusters concurrently, and shows the progress.
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
			if failed && ctx.Err() != nil { // because the run ended
				cluster.Outcome, cluster.Err = ClusterNotAsked, nil
				return nil
			}
			bar.Step(failed)
			return nil
		})
	}
	_ = group.Wait()
}

// over returns an error if ctx has ended.
func over(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rotating kubeconfigs: %w", err)
	}
	return nil
}

// changeAll changes the items.
func (r *run) changeAll(ctx context.Context, targets [][]kubeconfig.Target) error {
	bar := r.Progress.Bar(len(r.items), max(len(r.items)/10, 100), "kubeconfigs done")
	defer bar.End()
	var group errgroup.Group
	group.SetLimit(min(r.Concurrency, 16))
	for i, item := range r.items {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			r.result.Items[i] = r.change(ctx, item, targets[i])
			bar.Step(r.result.Items[i].Outcome == result.FileFailed)
			return nil
		})
	}
	_ = group.Wait()
	return over(ctx)
}

// targets returns the targets for the entries of each item.
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
		for _, i := range cluster.items {
			all[i] = append(all[i], *cluster.target)
		}
	}
	return all
}

// change changes one item.
func (r *run) change(ctx context.Context, item *Item, targets []kubeconfig.Target) *ItemResult {
	switch {
	case errors.Is(item.Err, kubeconfig.ErrDangling): // a link to a missing file cannot be used anyway
		return &ItemResult{Item: item, Outcome: result.FileSkipped, Err: item.Err}
	case item.Err != nil:
		return &ItemResult{Item: item, Outcome: result.FileFailed, Err: item.Err}
	}
	rotation, err := item.place.Update(ctx, item, kubeconfig.FileUpdate{
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
		return &ItemResult{Item: item, Outcome: result.FileFailed, Err: err}
	}
	return r.outcome(item, rotation)
}

// outcome returns the result for an item, including its entries whose cluster failed.
func (r *run) outcome(item *Item, rotation *kubeconfig.Rotation) *ItemResult {
	done := &ItemResult{Item: item, Entries: slices.Clone(rotation.Entries), Changes: rotation.Changes}
	for _, trust := range item.trusts {
		named := func(e kubeconfig.Entry) bool { return e.Kind == trust.Kind && e.Name == trust.Name }
		key, _ := canonical(trust.Server)
		cluster := r.byKey[key]
		if cluster == nil || cluster.Outcome != ClusterFailed || slices.ContainsFunc(done.Entries, named) {
			continue
		}
		entry := kubeconfig.Entry{Kind: trust.Kind, Name: trust.Name, Outcome: kubeconfig.Skipped}
		entry.Code, entry.Reason = CodeClusterFailed, cluster.Err.Error()
		if trust.Insecure {
			entry.Code, entry.Reason = kubeconfig.SkipInsecure, "it has insecure-skip-tls-verify"
		}
		done.Entries = append(done.Entries, entry)
	}
	order := []result.FileOutcome{result.FileUnrelated, result.FileCurrent, result.FileSkipped, result.FileRotated}
	best := 0
	for _, entry := range done.Entries {
		best = max(best, slices.Index(order, result.FileOutcome(entry.Outcome)))
	}
	done.Outcome = order[best]
	return done
}

// report adds what was not reached to the result.
func (r *run) report() {
	r.result.Clusters = r.clusters
	for _, admin := range r.admins {
		// The others are reported with their clusters.
		if admin.Outcome != ClusterAsked && admin.Outcome != ClusterUnrelated {
			r.result.Clusters = append(r.result.Clusters, admin)
		}
	}
}

// Place holds kubeconfigs.
type Place interface {
	// List returns the kubeconfigs. It changes nothing.
	List(ctx context.Context) ([]*Item, error)
	// Update changes an item that List has returned. It writes nothing if the rotation changes nothing or it is a dry
	// run, and never overwrites a concurrent change of another program.
	Update(ctx context.Context, item *Item, update kubeconfig.FileUpdate) (*kubeconfig.Rotation, error)
}

// Item is one kubeconfig.
type Item struct {
	// Kind is the kind of the place: file, capi, argocd or flux.
	Kind string
	// ID identifies the item: an absolute path, or NAMESPACE/NAME or NAMESPACE/NAME/KEY of a Secret.
	ID string
	// Shown is the name in messages: the path as given, or the Secret.
	Shown string
	Err   error // why the item cannot be read

	place  Place
	trusts []kubeconfig.Trust
	secret *secretItem
}

// Server returns the server of a cluster or user in the kubeconfig; empty if there are several.
func (i *Item) Server(kind, name string) string {
	server := ""
	for _, trust := range i.trusts {
		if trust.Kind != kind || trust.Name != name {
			continue
		}
		if server != "" && server != trust.Server {
			return ""
		}
		server = trust.Server
	}
	return server
}
