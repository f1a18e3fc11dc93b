package kubeconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Result is what the command prints with -o json or yaml.
type Result struct {
	Endpoint string `json:"endpoint"`
	// CABundle are the SHA-256 fingerprints of the certificates in the CA bundle, in its order.
	CABundle []string `json:"caBundle"`
	DryRun   bool     `json:"dryRun"`
	Files    []File   `json:"files"`
}

// File is the outcome for one kubeconfig.
type File struct {
	Path    string             `json:"path"`
	Outcome string             `json:"outcome"` // rotated, current, skipped, unrelated or failed
	Entries []kubeconfig.Entry `json:"entries,omitempty"`
	Error   string             `json:"error,omitempty"`
}

// Trusting counts the files whose clients now verify the endpoint with the CA bundle, or do not verify it at all. It
// returns the paths of the other files that lead to the endpoint. A file that could not be evaluated counts as one
// of these. Files that do not lead to the endpoint are left out.
func (r *Result) Trusting() (count int, without []string) {
	for _, file := range r.Files {
		left := func(e kubeconfig.Entry) bool {
			return e.Outcome == kubeconfig.Skipped && e.Code != kubeconfig.SkipInsecure
		}
		switch {
		case file.Outcome == outcomeUnrelated:
		case file.Outcome == outcomeFailed, slices.ContainsFunc(file.Entries, left),
			file.Outcome == string(kubeconfig.Skipped) && len(file.Entries) == 0:
			without = append(without, file.Path)
		default:
			count++
		}
	}
	return count, without
}

const (
	outcomeUnrelated = "unrelated" // nothing in it leads to the endpoint
	outcomeFailed    = "failed"
)

func (f File) failed(err error) File {
	f.Outcome, f.Error = outcomeFailed, err.Error()
	return f
}

// fileOutcome returns rotated if an entry was rotated, else skipped if an entry was skipped, else current. Without
// entries it returns unrelated.
func fileOutcome(entries []kubeconfig.Entry) string {
	if len(entries) == 0 {
		return outcomeUnrelated
	}
	for _, outcome := range []kubeconfig.Outcome{kubeconfig.Rotated, kubeconfig.Skipped} {
		if slices.ContainsFunc(entries, func(e kubeconfig.Entry) bool { return e.Outcome == outcome }) {
			return string(outcome)
		}
	}
	return string(kubeconfig.Current)
}

// detail names the entries, and says why some are left alone.
func (f File) detail() string {
	if f.Error != "" {
		return f.Error
	}
	var parts []string
	for _, entry := range f.Entries {
		part := fmt.Sprintf("%s %q", entry.Kind, entry.Name)
		if entry.Reason != "" {
			part += " left alone: " + entry.Reason
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func (o *RotateOptions) print(result *Result) error {
	if o.Output != "text" {
		return ui.PrintAs(o.Out, o.Output, result)
	}
	var rows [][]string
	for _, file := range result.Files {
		outcome := file.Outcome
		if o.DryRun && outcome == string(kubeconfig.Rotated) {
			outcome = "would be rotated"
		}
		rows = append(rows, []string{file.Path, outcome, file.detail()})
	}
	if len(rows) == 0 {
		return nil
	}
	return ui.Table(o.Out, []string{"kubeconfig", "result", "entries"}, rows)
}

// summarise says on stderr what the numbers are, and returns an error if a file failed.
func (o *RotateOptions) summarise(result *Result) error {
	counts := map[string]int{}
	for _, file := range result.Files {
		counts[file.Outcome]++
	}
	if failed := counts[outcomeFailed]; failed > 0 {
		return ui.WithHint(fmt.Errorf("%d of %d kubeconfigs could not be rotated", failed, len(result.Files)),
			"the result names the reasons; the others are done, and running the command again does no harm")
	}
	if counts[outcomeUnrelated] == len(result.Files) {
		o.progress.Warn("no kubeconfig here leads to %s", result.Endpoint)
	}
	return nil
}
