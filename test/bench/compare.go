package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"golang.org/x/perf/benchmath"
)

// confidence is that of the intervals. A verdict needs a difference that chance makes in one of twenty comparisons.
const confidence = 0.95

// measure is one number of a load that two runs can be compared by.
type measure struct {
	name     string
	of       func(requestResult) spread
	more     bool // is better
	absolute bool // means something on the same machine only
}

func measures() []measure {
	return []measure{
		{name: "ratio", more: true, of: func(l requestResult) spread { return l.Compared[proxied].Ratio }},
		{name: "added latency + 1", of: func(l requestResult) spread {
			var rounds []float64
			for _, added := range l.Compared[proxied].AddedLatency.Rounds {
				rounds = append(rounds, 1+added) // so that a change in percent has a meaning around zero
			}
			return spreadOf(rounds)
		}},
		{name: "CPU quotient", of: func(l requestResult) spread { return l.Compared[proxied].Quotient }},
		{
			name: "proxy CPU, µs", absolute: true,
			of: func(l requestResult) spread { return l.Ways[proxied].ProxyCPU },
		},
	}
}

// compareFiles prints what got better or worse between two runs that were saved as JSON.
func compareFiles(args []string, out, errOut io.Writer) int {
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		_, _ = fmt.Fprintln(errOut, "error: two files are needed: make bench-compare OLD=before.json NEW=after.json")
		return exitUsage
	}
	var runs [2]*report
	for i, path := range args {
		var err error
		if runs[i], err = readReport(path); err != nil {
			_, _ = fmt.Fprintln(errOut, "error:", err)
			return exitFailed
		}
	}
	if err := writeComparison(out, runs[0], runs[1]); err != nil {
		_, _ = fmt.Fprintln(errOut, "error:", err)
		return exitFailed
	}
	return exitDone
}

func readReport(path string) (*report, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading a result: %w", err)
	}
	var r report
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, fmt.Errorf("reading result %q: %w", path, err)
	}
	if r.Version != shapeVersion {
		return nil, fmt.Errorf(
			"result %q has version %d of the form, this program reads %d: measure it again, or check out the commit that wrote it",
			path,
			r.Version,
			shapeVersion,
		)
	}
	return &r, nil
}

// save keeps a report in a directory, and returns the file's path.
func (r *report) save(dir string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("keeping the results: %w", err)
	}
	path = filepath.Join(dir, r.Date.Format("20060102-150405")+".json")
	file, err := os.Create(path)
	if err != nil {
		return "", fmt.Errorf("keeping the results: %w", err)
	}
	return path, errors.Join(r.writeJSON(file), file.Close())
}

func writeComparison(out io.Writer, before, after *report) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	p := &printer{out: table}
	p.line("old: %s, new: %s", before.origin(), after.origin())
	same := before.Machine == after.Machine && before.Network == after.Network
	if !same {
		p.line("The machines or networks differ: absolute figures are left out.")
	}
	p.line("Medians with their %.0f %% confidence intervals. Of twenty differences like these, chance makes one.",
		100*confidence)
	p.line("")
	p.line("LOAD\tMEASURE\tOLD\tNEW\tCHANGE\tVERDICT")
	compared := 0
	for _, old := range before.Requests {
		i := slices.IndexFunc(after.Requests, func(l requestResult) bool { return l.Name == old.Name })
		if i < 0 {
			continue
		}
		for _, m := range measures() {
			if m.absolute && !same {
				continue
			}
			compared++
			p.compared(old.Name, m.name, m.more, m.of(old).Rounds, m.of(after.Requests[i]).Rounds)
		}
	}
	for _, old := range before.Figures {
		i := slices.IndexFunc(after.Figures, func(f figureResult) bool {
			return f.Load == old.Load && f.Way == old.Way && f.Name == old.Name
		})
		if i < 0 || !same || old.Way == other {
			continue
		}
		compared++
		p.compared(old.Load, old.Way+": "+old.Name+", "+old.Unit, old.More, old.values(), after.Figures[i].values())
	}
	if compared == 0 {
		return errors.New("the two results have no load in common")
	}
	if p.err != nil {
		return fmt.Errorf("printing the comparison: %w", p.err)
	}
	return table.Flush()
}

func (r *report) origin() string {
	return fmt.Sprintf("%s, %s, %d rounds of %gs", r.Agent, r.Date.Format("2006-01-02 15:04"), r.Rounds, r.Seconds)
}

// compared prints one measure of two runs. more says that more is better.
func (p *printer) compared(load, name string, more bool, before, after []float64) {
	if len(before) == 0 || len(after) == 0 {
		return
	}
	thresholds := benchmath.DefaultThresholds
	old := benchmath.NewSample(slices.Clone(before), &thresholds)
	now := benchmath.NewSample(slices.Clone(after), &thresholds)
	oldSummary := benchmath.AssumeNothing.Summary(old, confidence)
	newSummary := benchmath.AssumeNothing.Summary(now, confidence)
	comparison := benchmath.AssumeNothing.Compare(old, now)
	p.line("%s\t%s\t%s\t%s\t%s\t%s", load, name, interval(oldSummary), interval(newSummary),
		change(oldSummary.Center, newSummary.Center), verdict(comparison, more, oldSummary.Center, newSummary.Center))
}

func interval(s benchmath.Summary) string {
	if math.IsInf(s.Lo, 0) || math.IsInf(s.Hi, 0) {
		return digits(s.Center)
	}
	return fmt.Sprintf("%s [%s, %s]", digits(s.Center), digits(s.Lo), digits(s.Hi))
}

func change(before, after float64) string {
	if before == 0 {
		return ""
	}
	return fmt.Sprintf("%+.1f%%", 100*(after/before-1))
}

func verdict(c benchmath.Comparison, more bool, before, after float64) string {
	switch {
	case c.N1 < 4 || c.N2 < 4: // even if all values of one run lie above those of the other, that may be chance
		return fmt.Sprintf("too few rounds to tell (%d and %d)", c.N1, c.N2)
	case c.P > c.Alpha || before == after:
		return fmt.Sprintf("no difference shown (p=%.3f)", c.P)
	case (after > before) == more:
		return fmt.Sprintf("better (p=%.3f)", c.P)
	default:
		return fmt.Sprintf("WORSE (p=%.3f)", c.P)
	}
}
