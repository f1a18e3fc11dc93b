package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// target is what an attack is sent to beside the agent.
type target struct {
	way     string // of its figures
	address string
	ca      []byte
	pid     int
}

// figureAlone is the processor time of a target for an attack, as figureTheirs is that of the attacker, and
// figureAsked how many requests came.
const (
	figureAlone = "CPU of what is attacked"
	figureAsked = "requests of the attacker"
)

// otherTargets are the API server and the floor, when -other asks for the floor. What they spend on the good requests of a
// user is what any proxy has to spend, or the API server itself.
func (w *world) otherTargets(ctx context.Context) ([]target, error) {
	if w.options.Other != floor {
		return nil, nil
	}
	onLoopback, err := w.startFloor(ctx, floor+"-attacked")
	if err != nil {
		return nil, err
	}
	return []target{
		{
			way: direct, address: strings.TrimPrefix(w.Cluster.URL(), "https://"), ca: w.Cluster.CABundle(),
			pid: w.Cluster.APIServerPID(),
		},
		{way: other, address: onLoopback.ProxyAddress(), ca: w.proxyCA, pid: onLoopback.PID()},
	}, nil
}

// attackAlone sends an attack to another target. There are no honest users beside it. What the target needs when nothing
// is sent to it is left out.
func attackAlone(ctx context.Context, w *world, r *report, one attack, what order, to target) error {
	if one.needs == costlyChain && to.way == direct {
		return nil // each request takes it 0.85 s of CPU: it would go on for minutes, beside what is measured next
	}
	d := time.Duration(w.options.Hostile * float64(time.Second))
	began, err := readProcess(to.pid)
	if err != nil {
		return err
	}
	if err := pause(ctx, d); err != nil {
		return err
	}
	before, err := readProcess(to.pid)
	if err != nil {
		return err
	}
	what.Address, what.CA, what.ServerName, what.Salt = to.address, to.ca, "", random()
	attacking, err := startAttack(ctx, what)
	if err != nil {
		return err
	}
	waited := pause(ctx, d)
	did, cost, err := attacking.stop()
	if err := errors.Join(waited, err); err != nil {
		return fmt.Errorf("%s: %w", to.way, err)
	}
	after, err := readProcess(to.pid)
	if err != nil {
		return err
	}
	w.say("%s, %s: %+v", one.name, to.way, did)
	spent := (after - before) - (before - began)
	for _, f := range []figure{
		{name: figureAsked, unit: "requests", value: float64(did.Requests)},
		{name: figureTheirs, unit: "s", value: cost.Seconds()},
		{name: figureAlone, unit: "s", value: max(0, spent.Seconds())},
	} {
		f.name = one.name + ": " + f.name
		r.addFigure("hostile", to.way, f)
	}
	return nil
}

// aloneTable returns the table in docs/performance.md of what others than the agent spend on attacks, "" when that was
// not measured.
func (r *report) aloneTable() string {
	found := map[string]float64{}
	for _, one := range r.Figures {
		if one.Load == "hostile" {
			found[one.Way+" "+one.Name] = one.Value
		}
	}
	var rows strings.Builder
	for _, one := range attacks() {
		if found[direct+" "+one.name+": "+figureAsked] == 0 {
			continue
		}
		cell := func(way, name string) string {
			get := func(figure string) float64 { return found[way+" "+one.name+": "+figure] }
			theirs, spent, asked := get(figureTheirs), get(name), max(1, get(figureAsked))
			return fmt.Sprintf(
				"%.0f: %.2f : %.2f s, %.0f : %.0f µs each",
				asked,
				theirs,
				spent,
				theirs*1e6/asked,
				spent*1e6/asked,
			)
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", one.about,
			cell(proxied, figureOurs), cell(other, figureAlone), cell(direct, figureAlone))
	}
	if rows.Len() == 0 {
		return ""
	}
	return "| requests, and CPU of attacker : attacked | the proxy | the floor | the API server, directly |\n" +
		"|---|---|---|---|\n" + rows.String()
}
