package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// writeText prints the report for a human.
func (r *report) writeText(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	p := &printer{out: table}
	p.line("%s, %d cores, %s, %s, %s, network: %s, agent %s", r.Machine.Processor, r.Machine.Cores, r.Machine.Platform,
		r.Machine.Go, r.Date.Format("2006-01-02 15:04"), r.Network, r.Agent)
	p.line("%d rounds of %gs in turn; medians, and in parentheses the least and the greatest of the rounds; "+
		"CPU, user and system, is a request's", r.Rounds, r.Seconds)
	if len(r.Requests) > 0 {
		p.line("")
		p.line("LOAD\tWAY\tRATE\tRATIO\tP50\tP99\tADDED\tPROXY CPU\tAPI SERVER CPU\tQUOTIENT\tGOALS")
	}
	for _, l := range r.Requests {
		for _, way := range []string{direct, proxied, other} {
			if _, measured := l.Ways[way]; measured {
				p.request(l, way)
			}
		}
	}
	if len(r.Figures) > 0 {
		p.line("")
		p.line("LOAD\tWAY\tFIGURE\tVALUE\tGOAL")
	}
	for _, f := range r.Figures {
		var aim string
		if f.Goal != nil {
			aim = verdicts([]goal{{Of: f.Unit, Aim: f.Goal.Aim, Met: f.Goal.Met}})
		}
		p.line("%s\t%s\t%s\t%s %s\t%s", f.Load, f.Way, f.Name, digits(f.Value), f.Unit, aim)
	}
	if r.Model != nil {
		p.line("")
		p.line("This proxy:\t%s", r.Model)
		p.line("Teleport's, as published:\t%s", published())
	}
	if p.err != nil {
		return fmt.Errorf("printing the report: %w", p.err)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	for _, one := range r.tables() {
		if _, err := io.WriteString(out, "\nFor docs/performance.md:\n\n"+one); err != nil {
			return fmt.Errorf("printing the report: %w", err)
		}
	}
	return nil
}

// tables are those that have a row for each honest use or attack, and were measured.
func (r *report) tables() []string {
	all := []string{r.heavyTable(), r.hostileTable(), r.aloneTable()}
	return slices.DeleteFunc(all, func(one string) bool { return one == "" })
}

// request prints what one way of a load gave.
func (p *printer) request(l requestResult, way string) {
	got := l.Ways[way]
	compared := l.Compared[way]
	ratio, added, quotient, proxy, aims := "", "", "", "", ""
	if way != direct {
		ratio = fmt.Sprintf("%.2f (%.2f–%.2f)", compared.Ratio.Median, compared.Ratio.least(), compared.Ratio.greatest())
		added = fmt.Sprintf("%+.0f%%", 100*compared.AddedLatency.Median)
		proxy = fmt.Sprintf("%.0f µs", got.ProxyCPU.Median)
		if len(compared.Quotient.Rounds) > 0 {
			quotient = fmt.Sprintf("%.2f (%.2f–%.2f)",
				compared.Quotient.Median, compared.Quotient.least(), compared.Quotient.greatest())
		}
	}
	if way == proxied {
		aims = verdicts(l.Goals)
	}
	p.line("%s\t%s\t%.0f/s\t%s\t%.2f ms\t%.1f ms\t%s\t%s\t%.0f µs\t%s\t%s", l.Name, way, got.Rate.Median, ratio,
		got.P50.Median, got.P99.Median, added, proxy, got.APIServerCPU.Median, quotient, aims)
}

func verdicts(goals []goal) string {
	var said []string
	for _, g := range goals {
		word := "met"
		if !g.Met {
			word = "MISSED"
		}
		said = append(said, fmt.Sprintf("%s %s %s", g.Of, g.Aim, word))
	}
	return strings.Join(said, "; ")
}

type printer struct {
	out io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format+"\n", args...)
	}
}

// digits writes a number for people: with four digits, and without an exponent.
func digits(value float64) string {
	if math.Abs(value) >= 1000 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 4, 64)
}
