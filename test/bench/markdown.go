package main

import (
	"fmt"
	"io"
	"strings"
)

// writeMarkdown prints the tables of docs/performance.md.
func (r *report) writeMarkdown(out io.Writer) error {
	p := &printer{out: out}
	p.line("Measured %s on %s with %d cores, %s, network: %s, agent %s: %d rounds of %g s.", r.Date.Format("2006-01-02"),
		r.Machine.Processor, r.Machine.Cores, r.Machine.Go, r.Network, r.Agent, r.Rounds, r.Seconds)
	if len(r.Requests) > 0 {
		p.line("")
		p.line(
			"| load | direct | API server's CPU | proxied | ratio (least–greatest) | added | proxy CPU | quotient | goals |",
		)
		p.line("|---|---|---|---|---|---|---|---|---|")
	}
	for _, l := range r.Requests {
		for _, way := range []string{proxied, other} {
			if _, measured := l.Ways[way]; measured {
				p.row(l, way)
			}
		}
	}
	if len(r.Figures) > 0 {
		p.line("")
		p.line("| load | figure | direct | proxied | other | goal |")
		p.line("|---|---|---|---|---|---|")
	}
	p.figures(r.Figures)
	for _, one := range r.tables() {
		p.line("\n%s", strings.TrimSpace(one))
	}
	if p.err != nil {
		return fmt.Errorf("printing the report: %w", p.err)
	}
	return nil
}

func (p *printer) row(l requestResult, way string) {
	name, aims := l.Name, strings.ToLower(verdicts(l.Goals))
	if way != proxied {
		name, aims = l.Name+", "+way, ""
	}
	before, after, compared := l.Ways[direct], l.Ways[way], l.Compared[way]
	p.line("| %s | %s | %.0f µs | %s | %.2f (%.2f–%.2f) | %+.0f%% | %.0f µs | %.2f | %s |", name, pace(before),
		before.APIServerCPU.Median, pace(after), compared.Ratio.Median, compared.Ratio.least(), compared.Ratio.greatest(),
		100*compared.AddedLatency.Median, after.ProxyCPU.Median, compared.Quotient.Median, aims)
}

func pace(way wayResult) string {
	return fmt.Sprintf("%.0f/s, %.2f ms", way.Rate.Median, way.P50.Median)
}

// figures prints a row for each figure, whichever ways it was measured on. The loads honest and hostile have tables of their own.
func (p *printer) figures(all []figureResult) {
	type key struct{ load, name string }
	rows := map[key]map[string]figureResult{}
	var order []key
	for _, f := range all {
		if f.Load == "hostile" || f.Load == "honest" {
			continue
		}
		k := key{f.Load, f.Name}
		if rows[k] == nil {
			rows[k] = map[string]figureResult{}
			order = append(order, k)
		}
		rows[k][f.Way] = f
	}
	for _, k := range order {
		var cells []string
		for _, way := range []string{direct, proxied, other} {
			cell := ""
			if f, measured := rows[k][way]; measured {
				cell = digits(f.Value) + " " + f.Unit
			}
			cells = append(cells, strings.TrimSpace(cell))
		}
		aim := ""
		if g := rows[k][proxied].Goal; g != nil {
			aim = strings.ToLower(verdicts([]goal{{Aim: g.Aim, Met: g.Met}}))
		}
		p.line("| %s | %s | %s | %s |", k.load, k.name, strings.Join(cells, " | "), strings.TrimSpace(aim))
	}
}
