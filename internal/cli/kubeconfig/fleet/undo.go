package fleet

import (
	"context"
	"fmt"
	"slices"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Undo takes back what the journal says was done, the last first. What was changed again since stays. It goes on with
// the next kubeconfig when one fails. place returns where items of a kind are.
func Undo(ctx context.Context, o Options, place func(kind string) (Place, error)) (*Result, error) {
	result := &Result{DryRun: o.DryRun, Started: o.Now()}
	all := o.Journal.items()
	slices.Reverse(all)
	var stopped error
	bar := o.Progress.Bar(len(all), max(len(all)/10, 100), "kubeconfigs done")
	for _, one := range all {
		if len(one.changes) == 0 {
			continue
		}
		if stopped != nil || ctx.Err() != nil {
			result.Items = append(result.Items, &ItemResult{Item: one.item, Outcome: NotDone})
			continue
		}
		made := &ItemResult{Item: one.item}
		made.Entries, made.Err = undo(ctx, o, place, one)
		made.Outcome = Current
		for _, entry := range made.Entries {
			if outcome := Outcome(entry.Outcome); rank(outcome) > rank(made.Outcome) {
				made.Outcome = outcome
			}
		}
		if made.Err != nil {
			made.Outcome = Failed
		} else if !o.DryRun {
			stopped = o.Journal.note(recordUndone, one.item)
		}
		bar.Step(made.Err != nil)
		result.Items = append(result.Items, made)
	}
	bar.End()
	result.Took = o.Now().Sub(result.Started)
	switch {
	case stopped != nil:
		return result, stopped
	case ctx.Err() != nil:
		return result, fmt.Errorf("taking the rotation back: %w", ctx.Err())
	}
	return result, o.Journal.finish()
}

func undo(
	ctx context.Context,
	o Options,
	placeOf func(kind string) (Place, error),
	one *left,
) ([]kubeconfig.Entry, error) {
	place, err := placeOf(one.item.Kind)
	if err != nil {
		return nil, err
	}
	if o.Journal.Interrupted != "" && one.item.Kind == kindFile && !o.DryRun {
		if err := kubeconfig.ClearLeftovers(ctx, one.item.ID, o.Journal.Owner(), o.Journal.dead); err != nil {
			return nil, err
		}
	}
	rotation, err := place.Update(ctx, one.item, Update{
		DryRun: o.DryRun, Owner: o.Journal.Owner(),
		Change: func(content []byte) (*kubeconfig.Rotation, error) { return restore(content, one.changes) },
	})
	if err != nil {
		return nil, err
	}
	return rotation.Entries, nil
}

// restore takes back the changes of several times, the last first. An entry is rotated when any of that changed it.
func restore(content []byte, times [][]kubeconfig.Change) (*kubeconfig.Rotation, error) {
	whole := &kubeconfig.Rotation{Content: content}
	at := map[string]int{}
	for _, changes := range slices.Backward(times) {
		made, err := kubeconfig.Restore(whole.Content, changes)
		if err != nil {
			return nil, err
		}
		whole.Content = made.Content
		for _, entry := range made.Entries {
			i, known := at[entry.Kind+"/"+entry.Name]
			switch {
			case !known:
				at[entry.Kind+"/"+entry.Name] = len(whole.Entries)
				whole.Entries = append(whole.Entries, entry)
			case entry.Outcome == kubeconfig.Rotated:
				whole.Entries[i] = entry
			}
		}
	}
	return whole, nil
}
