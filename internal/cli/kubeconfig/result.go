package kubeconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Result is what `kubeconfig rotate` prints for programs.
type Result = result.KubeconfigRotation

// fileOutcome returns rotated if an entry was rotated, else skipped if an entry was skipped, else current. Without
// entries it returns unrelated.
func fileOutcome(entries []result.Entry) result.FileOutcome {
	if len(entries) == 0 {
		return result.FileUnrelated
	}
	for _, outcome := range []result.FileOutcome{result.FileRotated, result.FileSkipped} {
		if slices.ContainsFunc(entries, func(e result.Entry) bool { return e.Outcome == outcome }) {
			return outcome
		}
	}
	return result.FileCurrent
}

// entriesOf returns the entries as they are printed.
func entriesOf(entries []kubeconfig.Entry) []result.Entry {
	var all []result.Entry
	for _, e := range entries {
		all = append(all, result.Entry{
			Kind: result.EntryKind(e.Kind), Name: e.Name, Outcome: result.FileOutcome(e.Outcome), Code: string(e.Code),
			Reason: e.Reason,
		})
	}
	return all
}

// detail names the entries, and says why some are left alone.
func detail(f result.File) string {
	if f.Reason != "" {
		return f.Reason
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

// print writes the result to stdout, and returns err.
func (o *RotateOptions) print(rotation *Result, err error) error {
	return result.Print(o.Out, o.Output, rotation, err, func() ([]byte, error) { return o.text(rotation) })
}

func (o *RotateOptions) text(rotation *Result) ([]byte, error) {
	var rows [][]string
	for _, file := range rotation.Files {
		outcome := string(file.Outcome)
		if o.DryRun && file.Outcome == result.FileRotated {
			outcome = "would be rotated"
		}
		rows = append(rows, []string{file.Path, outcome, detail(file)})
	}
	if len(rows) == 0 {
		return nil, nil
	}
	var out strings.Builder
	err := ui.PlainTable(&out, []string{"kubeconfig", "result", "entries"}, rows)
	return []byte(out.String()), err
}

// summarise says on stderr what the numbers are, and returns an error if a file failed.
func (o *RotateOptions) summarise(rotation *Result) error {
	counts := map[result.FileOutcome]int{}
	told := map[string]bool{}
	for _, file := range rotation.Files {
		counts[file.Outcome]++
		for _, one := range file.Added {
			if text := addedText([]result.AddedCA{one}, o.DryRun); !told[text] {
				told[text] = true
				o.progress.Info("%s", text)
			}
		}
	}
	if failed := counts[result.FileFailed]; failed > 0 {
		return ui.WithHint(fmt.Errorf("%d of %d kubeconfigs could not be rotated", failed, len(rotation.Files)),
			"the result names the reasons; the others are done, and running the command again does no harm")
	}
	if counts[result.FileUnrelated] == len(rotation.Files) {
		o.progress.Warn("no kubeconfig here leads to %s", rotation.Endpoint)
	}
	return nil
}
