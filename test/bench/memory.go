package main

import (
	"context"
	"fmt"
	"time"
)

// measureIdle holds connections over which one request went, and takes the memory that each costs.
func measureIdle(ctx context.Context, w *world, r *report) error {
	n := w.options.Idle
	clients, err := w.bothClients(n)
	if err != nil {
		return err
	}
	c := clients[proxied]
	defer c.close()
	if _, err := c.do(ctx, 0, get(configMaps+"/"+objectName(0))); err != nil {
		return err
	}
	if err := pause(ctx, settling); err != nil {
		return err
	}
	before, err := readMemory(w.agent.PID())
	if err != nil {
		return err
	}
	err = parallel(ctx, w.options.Workers, n, func(i int) error {
		_, err := c.do(ctx, i, get(configMaps+"/"+objectName(0)))
		return err
	})
	if err != nil {
		return err
	}
	if err := pause(ctx, settling); err != nil {
		return err
	}
	after, err := readMemory(w.agent.PID())
	if err != nil {
		return err
	}
	r.addFigure("idle", proxied, figure{
		name: fmt.Sprintf("memory of the agent for each of %d HTTP/2 connections", n), unit: "kB",
		value: float64(after.all-before.all) / float64(n) / 1024, atMost: 40,
	})
	return nil
}

// measureMemory waits until the agent has done what it does at its start, and looks at its memory.
func measureMemory(ctx context.Context, w *world, r *report) error {
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	for _, way := range w.ways()[1:] {
		m, err := readMemory(w.agentOf(way).PID())
		if err != nil {
			return err
		}
		const mega = 1 << 20
		r.addFigure(
			"memory",
			way,
			figure{name: "resident memory, idle", unit: "MB", value: float64(m.all) / mega, atMost: 45},
		)
		r.addFigure(
			"memory",
			way,
			figure{name: "of it the program's own pages", unit: "MB", value: float64(m.files) / mega},
		)
	}
	return nil
}
