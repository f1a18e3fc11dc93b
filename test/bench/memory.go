package main

import (
	"context"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		value: float64(after.anonymous-before.anonymous) / float64(n) / 1024, atMost: 40,
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

// warmWatches are opened first, so that what the first ones cost once is not counted.
const warmWatches = 10

// measureWatchMemory takes what an idle watch costs an agent that has done little else.
func measureWatchMemory(ctx context.Context, w *world, r *report) error {
	there, err := w.admin.CoreV1().ConfigMaps(namespace).Get(ctx, objectName(0), metav1.GetOptions{})
	if err != nil {
		return err
	}
	clients, err := w.bothClients(connectionsFor(w.options.Watcher + warmWatches))
	if err != nil {
		return err
	}
	for _, way := range w.ways()[1:] {
		each, err := watchMemory(ctx, w, way, clients[way], watchPath(objectName(0), there.ResourceVersion))
		if err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
		r.addFigure("watch-memory", way, figure{
			name: fmt.Sprintf("memory of the agent for each of %d watches", w.options.Watcher), unit: "kB",
			value: each, atMost: 30,
		})
	}
	return nil
}

func watchMemory(ctx context.Context, w *world, way string, c *client, path string) (float64, error) {
	open := newWatching(ctx, c, func(body io.Reader) { _, _ = io.Copy(io.Discard, body) })
	defer open.close()
	const atOnce = 8
	var sizes []memory
	for _, n := range []int{warmWatches, w.options.Watcher} {
		if err := parallel(ctx, atOnce, n, func(i int) error { return open.open(i, path) }); err != nil {
			return 0, err
		}
		if err := pause(ctx, settling); err != nil {
			return 0, err
		}
		size, err := readMemory(w.agentOf(way).PID())
		if err != nil {
			return 0, err
		}
		sizes = append(sizes, size)
	}
	return float64(sizes[1].anonymous-sizes[0].anonymous) / float64(w.options.Watcher) / 1024, nil
}
