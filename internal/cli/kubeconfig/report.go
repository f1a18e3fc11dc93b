package kubeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/kubeconfig/fleet"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// resultOf returns the result for JSON and YAML output.
func resultOf(done *fleet.Result) *result.KubeconfigRotation {
	all := &result.KubeconfigRotation{
		DryRun:   done.DryRun,
		Clusters: []result.RotatedCluster{}, Kubeconfigs: []result.RotatedKubeconfig{},
	}
	for _, cluster := range done.Clusters {
		one := result.RotatedCluster{
			Server: cluster.Server, Outcome: cluster.Outcome, Kubeconfigs: cluster.Items(),
			Tries: cluster.Tries, Milliseconds: int(cluster.Took.Milliseconds()),
		}
		if cluster.Tries > 0 {
			one.Source = cluster.Source
		}
		if cluster.Outcome == fleet.ClusterAsked && cluster.Tries > 0 {
			one.CABundle = result.BundleOf(cluster.CABundle)
		}
		if cluster.Err != nil {
			one.Reason = cluster.Err.Error()
		}
		if cluster.Outcome == fleet.ClusterFailed {
			all.Summary.ClustersFailed++
		}
		all.Clusters = append(all.Clusters, one)
	}
	sum := &all.Summary
	for _, item := range done.Items {
		one := result.RotatedKubeconfig{
			Where: item.Item.Shown, Outcome: item.Outcome, Added: addedBy(item.Changes),
		}
		for _, e := range item.Entries {
			one.Entries = append(one.Entries, result.Entry{
				Kind: result.EntryKind(e.Kind), Name: e.Name, Server: item.Item.Server(e.Kind, e.Name),
				Outcome: result.FileOutcome(e.Outcome), Code: string(e.Code), Reason: e.Reason,
			})
		}
		if item.Err != nil {
			one.Reason = item.Err.Error()
		}
		*map[result.FileOutcome]*int{
			result.FileRotated: &sum.Rotated, result.FileCurrent: &sum.Current, result.FileSkipped: &sum.Skipped,
			result.FileUnrelated: &sum.Unrelated, result.FileFailed: &sum.Failed, result.FileNotDone: &sum.NotDone,
		}[item.Outcome]++
		all.Kubeconfigs = append(all.Kubeconfigs, one)
	}
	sum.Clusters, sum.Kubeconfigs = len(all.Clusters), len(all.Kubeconfigs)
	sum.Milliseconds = int(done.Took.Milliseconds())
	return all
}

// withoutTrust counts the kubeconfigs with an entry that did not get its cluster's trust bundle.
func withoutTrust(done *fleet.Result) int {
	count := 0
	for _, item := range done.Items {
		if slices.ContainsFunc(item.Entries, func(e kubeconfig.Entry) bool {
			return e.Code == kubeconfig.SkipNotAccepted || e.Code == fleet.CodeClusterFailed
		}) {
			count++
		}
	}
	return count
}

// textOfRotation returns the newly trusted CAs, and tables of failed clusters and of kubeconfigs.
func textOfRotation(done *result.KubeconfigRotation) ([]byte, error) {
	var out strings.Builder
	var rows [][]string
	for _, cluster := range done.Clusters {
		if cluster.Outcome == "failed" || cluster.Outcome == "notAsked" {
			rows = append(rows, []string{
				cluster.Server, string(cluster.Outcome), fmt.Sprint(cluster.Kubeconfigs), cluster.Reason,
			})
		}
	}
	if len(rows) > 0 {
		if err := ui.PlainTable(&out, []string{"cluster", "result", "kubeconfigs", "reason"}, rows); err != nil {
			return nil, err
		}
		out.WriteString("\n")
	}
	rows = nil
	for _, one := range done.Kubeconfigs {
		outcome := string(one.Outcome)
		if done.DryRun && one.Outcome == result.FileRotated {
			outcome = "would be rotated"
		}
		if one.Outcome != result.FileUnrelated {
			rows = append(rows, []string{one.Where, outcome, detail(one)})
		}
	}
	alone := len(done.Kubeconfigs) == 1 && done.Summary.Failed == 1 // the error has the reason
	if err := addedTable(&out, done); err != nil || len(rows) == 0 || alone {
		return []byte(out.String()), err
	}
	err := ui.PlainTable(&out, []string{"kubeconfig", "result", "entries"}, rows)
	return []byte(out.String()), err
}

// sum returns the counts in one sentence.
func sum(done *result.KubeconfigRotation) string {
	s := done.Summary
	var parts []string
	for _, one := range []struct {
		count int
		what  string
	}{
		{s.Rotated, "rotated"},
		{s.Current, "current"},
		{s.Skipped, "skipped"},
		{s.Unrelated, "unrelated"},
		{s.Failed, "failed"},
		{s.NotDone, "not done"},
	} {
		if one.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", one.count, one.what))
		}
	}
	if len(parts) == 0 {
		parts = []string{"none"}
	}
	text := fmt.Sprintf("Kubeconfigs: %s", strings.Join(parts, ", "))
	if s.Clusters > 0 {
		text += fmt.Sprintf("; clusters: %d, %d failed", s.Clusters, s.ClustersFailed)
	}
	return text + fmt.Sprintf("; %s", (time.Duration(s.Milliseconds)*time.Millisecond).Round(100*time.Millisecond))
}

// detail lists the entries, with the reasons for skipped ones.
func detail(one result.RotatedKubeconfig) string {
	if one.Reason != "" {
		return one.Reason
	}
	var parts []string
	for _, entry := range one.Entries {
		part := fmt.Sprintf("%s %q", entry.Kind, entry.Name)
		if entry.Reason != "" {
			part += " skipped: " + entry.Reason
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// report prints the result and the counts. It returns err, or an error if something has failed.
func (o *RotateOptions) report(done *fleet.Result, err error) error {
	shown := resultOf(done)
	o.progress.Info("%s", sum(shown))
	switch failed, without := shown.Summary.Failed, withoutTrust(done); {
	case err != nil:
		err = ui.WithHint(err, "run the same command again; kubeconfigs that are already updated stay unchanged")
	case failed > 0 && len(done.Items) == 1:
		err = explainFile(done.Items[0].Err)
	case failed > 0:
		err = ui.WithHint(fmt.Errorf("rotating kubeconfigs: %d of %d failed", failed, len(done.Items)),
			"see the output for the reasons, fix the problems, and run the command again")
	case without > 0:
		err = ui.WithHint(
			fmt.Errorf("rotating kubeconfigs: %d of %d did not get the published CA bundle", without, len(done.Items)),
			"see the output for the reasons; if an endpoint does not publish its trust bundle, use --admin-kubeconfig")
	case shown.Summary.ClustersFailed > 0:
		err = fmt.Errorf("reading CA bundles: %d of %d clusters failed", shown.Summary.ClustersFailed, len(done.Clusters))
	case shown.Summary.Unrelated == len(done.Items):
		o.progress.Warn("no kubeconfig uses %s", cmp.Or(o.Endpoint, "an impersonation proxy"))
	}
	return result.Print(o.Out, o.Output, shown, err, func() ([]byte, error) { return textOfRotation(shown) })
}

// explainFile adds a hint to an error about a kubeconfig.
func explainFile(err error) error {
	switch {
	case errors.Is(err, kubeconfig.ErrDamaged):
		return ui.WithHint(err, "fix the file first; nothing was written")
	case errors.Is(err, atomicfile.ErrNotRegular):
		return ui.WithHint(err, "use a regular file: a pipe or a device cannot be changed")
	case errors.Is(err, kubeconfig.ErrNotKubeconfig), errors.Is(err, fs.ErrNotExist):
		return ui.WithHint(err, "pass kubeconfigs, or folders that contain them")
	}
	return err
}

// addedBy returns the certificates that changes of a kubeconfig newly trust, once per server.
func addedBy(changes []kubeconfig.Change) []result.AddedCA {
	var all []result.AddedCA
	known := map[[2]string]bool{}
	for _, change := range changes {
		for _, certificate := range trustbundle.Added(change.From, change.To) {
			one := result.AddedCA{Server: change.Server, Certificate: result.CACertificateOf(certificate)}
			if key := [2]string{one.Server, one.Certificate.SHA256}; !known[key] {
				known[key] = true
				all = append(all, one)
			}
		}
	}
	return all
}

// addedTable lists the newly trusted certificates and the number of kubeconfigs that trust them.
func addedTable(out *strings.Builder, done *result.KubeconfigRotation) error {
	counts := map[[2]string]int{}
	var order []result.AddedCA
	for _, file := range done.Kubeconfigs {
		for _, one := range file.Added {
			at := [2]string{one.Server, one.Certificate.SHA256}
			if counts[at]++; counts[at] == 1 {
				order = append(order, one)
			}
		}
	}
	if len(order) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(order))
	for _, one := range order {
		rows = append(rows, []string{
			one.Server, fmt.Sprintf("%.120q", one.Certificate.Subject), one.Certificate.SHA256,
			fmt.Sprint(counts[[2]string{one.Server, one.Certificate.SHA256}]),
		})
	}
	header := "added CA"
	if done.DryRun {
		header = "CA that would be added"
	}
	if err := ui.Table(out, []string{"cluster", header, "SHA-256", "kubeconfigs"}, rows); err != nil {
		return err
	}
	out.WriteString("\n")
	return nil
}
