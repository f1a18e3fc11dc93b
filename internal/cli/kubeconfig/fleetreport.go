package kubeconfig

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/kubeconfig/fleet"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui/junit"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// fleetResult is the result as it is printed for programs.
func fleetResult(done *fleet.Result) *result.FleetRotation {
	all := &result.FleetRotation{
		DryRun: done.DryRun, Resumed: done.Resumed,
		Clusters: []result.FleetCluster{}, Kubeconfigs: []result.FleetKubeconfig{},
	}
	for _, cluster := range done.Clusters {
		one := result.FleetCluster{
			Server: cluster.Server, Outcome: result.FleetClusterOutcome(cluster.Outcome), Kubeconfigs: cluster.Items(),
			Tries: cluster.Tries, Milliseconds: int(cluster.Took.Milliseconds()),
		}
		if cluster.Tries > 0 {
			one.Source = result.FleetSource(cluster.Source)
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
		one := result.FleetKubeconfig{
			Where: item.Item.Shown, Outcome: result.FileOutcome(item.Outcome), Entries: entriesOf(item.Entries),
			Added: addedBy(item.Changes),
		}
		for i := range one.Entries {
			one.Entries[i].Server = item.Item.Server(string(one.Entries[i].Kind), one.Entries[i].Name)
		}
		if item.Err != nil {
			one.Reason = item.Err.Error()
		}
		*map[fleet.Outcome]*int{
			fleet.Rotated: &sum.Rotated, fleet.Current: &sum.Current, fleet.Skipped: &sum.Skipped,
			fleet.Unrelated: &sum.Unrelated, fleet.Failed: &sum.Failed, fleet.NotDone: &sum.NotDone,
		}[item.Outcome]++
		all.Kubeconfigs = append(all.Kubeconfigs, one)
	}
	sum.Clusters, sum.Kubeconfigs = len(all.Clusters), len(all.Kubeconfigs)
	sum.Milliseconds = int(done.Took.Milliseconds())
	return all
}

// withoutTrust counts the kubeconfigs in which an entry did not get what its cluster advertises.
func withoutTrust(done *fleet.Result) int {
	count := 0
	for _, item := range done.Items {
		for _, entry := range item.Entries {
			if entry.Code == kubeconfig.SkipNotAccepted || entry.Code == fleet.CodeClusterFailed {
				count++
				break
			}
		}
	}
	return count
}

// fleetText is a table of what needs attention: clusters that failed, and kubeconfigs that are not as they should be.
// Before them stands who is trusted now and was not before.
func fleetText(done *result.FleetRotation) ([]byte, error) {
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
	var added [][]result.AddedCA
	for _, one := range done.Kubeconfigs {
		added = append(added, one.Added)
		outcome := string(one.Outcome)
		if done.DryRun && one.Outcome == result.FileRotated {
			outcome = "would be rotated"
		}
		if one.Outcome != result.FileUnrelated {
			rows = append(rows, []string{one.Where, outcome, detail(result.File{Reason: one.Reason, Entries: one.Entries})})
		}
	}
	if err := addedTable(&out, done.DryRun, added); err != nil || len(rows) == 0 {
		return []byte(out.String()), err
	}
	err := ui.PlainTable(&out, []string{"kubeconfig", "result", "entries"}, rows)
	return []byte(out.String()), err
}

// sum is one sentence about the numbers.
func sum(done *result.FleetRotation) string {
	s := done.Summary
	var parts []string
	for _, one := range []struct {
		count int
		what  string
	}{
		{s.Rotated, "rotated"},
		{s.Current, "current"},
		{s.Skipped, "left alone"},
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

// fleetJUnit has a suite of clusters and one of kubeconfigs. A kubeconfig that has not what its cluster advertises is a
// failure; what was not reached, or is not to be rotated, is skipped.
func fleetJUnit(done *result.FleetRotation) ([]byte, error) {
	clusters, files := junit.Suite{Name: "clusters"}, junit.Suite{Name: "kubeconfigs"}
	for _, one := range done.Clusters {
		made := junit.Case{
			Name:    one.Server,
			Seconds: fmt.Sprintf("%.3f", float64(one.Milliseconds)/1000),
		}
		switch one.Outcome {
		case "failed":
			made.Failure = &junit.Message{Message: one.Reason}
		case "notAsked":
			made.Skipped = &junit.Message{Message: "the command ended before its turn"}
		case "unrelated":
			made.Skipped = &junit.Message{Message: "it is no impersonation proxy"}
		}
		clusters.Add(made)
	}
	for _, one := range done.Kubeconfigs {
		made := junit.Case{Name: one.Where, Out: addedText(one.Added, done.DryRun)}
		said := detail(result.File{Reason: one.Reason, Entries: one.Entries})
		switch one.Outcome {
		case result.FileFailed:
			made.Failure = &junit.Message{Message: said}
		case result.FileNotDone:
			made.Skipped = &junit.Message{Message: "the command ended before its turn"}
		case result.FileUnrelated:
			made.Skipped = &junit.Message{Message: "nothing in it leads to an impersonation proxy"}
		default:
			for _, entry := range one.Entries {
				if entry.Code == string(kubeconfig.SkipNotAccepted) || entry.Code == string(fleet.CodeClusterFailed) {
					made.Failure = &junit.Message{Message: said}
				}
			}
			if made.Failure == nil && one.Outcome == result.FileSkipped {
				made.Skipped = &junit.Message{Message: said}
			}
		}
		files.Add(made)
	}
	return junit.Encode("pinniped kubeconfig rotate", clusters, files)
}

// writeJUnit writes the report into a file.
func writeJUnit(path string, done *result.FleetRotation) error {
	text, err := fleetJUnit(done)
	if err == nil {
		err = os.WriteFile(path, text, 0o644) //nolint:gosec // a report is for everybody
	}
	if err != nil {
		return fmt.Errorf("writing the JUnit report: %w", err)
	}
	return nil
}
