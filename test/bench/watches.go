package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// watchesPerConnection is less than the streams that servers allow on one.
	watchesPerConnection = 75
	openTimeout          = 30 * time.Second
	settling             = 2 * time.Second
)

// watching is a number of open watches.
type watching struct {
	client *client
	cancel context.CancelFunc
	group  sync.WaitGroup
	bodies []io.ReadCloser
}

// openWatches opens n watches of one ConfigMap at once, spread over connections. It returns those that were opened, with the first error.
// Whatever arrives on one is given to each.
func openWatches(ctx context.Context, c *client, path string, n int, each func(io.Reader)) (*watching, error) {
	life, cancel := context.WithCancel(ctx)
	o := &watching{client: c, cancel: cancel}
	var mu sync.Mutex
	var failed []error
	var opening sync.WaitGroup
	for i := range n {
		opening.Go(func() {
			one, stop := context.WithCancelCause(life)
			late := time.AfterFunc(openTimeout, func() { stop(errors.New("it took too long")) })
			answer, err := c.open(one, i, get(path))
			late.Stop()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				stop(nil)
				failed = append(failed, fmt.Errorf("opening a watch: %w", err))
				return
			}
			context.AfterFunc(life, func() { stop(nil) })
			o.bodies = append(o.bodies, answer.Body)
			o.group.Go(func() { each(answer.Body) })
		})
	}
	opening.Wait()
	if len(failed) > 0 {
		return o, failed[0]
	}
	return o, nil
}

func (o *watching) close() {
	o.cancel()
	o.group.Wait()
	for _, body := range o.bodies {
		_ = body.Close()
	}
	o.client.close()
}

func connectionsFor(watches int) int {
	return (watches + watchesPerConnection - 1) / watchesPerConnection
}

func watchPath(name, version string) string {
	return configMaps + "?watch=1&fieldSelector=metadata.name%3D" + name + "&resourceVersion=" + version
}

// measureWatches opens many watches at once, while another user goes on as before.
func measureWatches(ctx context.Context, w *world, r *report) error {
	there, err := w.admin.CoreV1().ConfigMaps(namespace).Get(ctx, objectName(0), metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, way := range ways() {
		if err := watchesOf(ctx, w, r, way, watchPath(objectName(0), there.ResourceVersion)); err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
	}
	return nil
}

func watchesOf(ctx context.Context, w *world, r *report, way, path string) error {
	n := w.options.Watches
	watcher, err := w.bothClients(connectionsFor(n))
	if err != nil {
		return err
	}
	other, err := w.bothClients(1)
	if err != nil {
		return err
	}
	bystander := loop{workers: 1, call: func(ctx context.Context, _, _ int) (int64, error) {
		time.Sleep(2 * time.Millisecond) // somebody who asks now and then
		asked := time.Now()
		_, err := other[way].do(ctx, 0, get(configMaps+"/"+objectName(1)))
		return int64(time.Since(asked)), err
	}}
	calm, err := bystander.run(ctx, w, w.options.turn())
	if err != nil {
		return err
	}
	before, err := readMemory(w.agent.PID())
	if err != nil {
		return err
	}
	type outcome struct {
		sample
		err error
	}
	meanwhile := make(chan outcome, 1)
	opening, opened := context.WithCancel(ctx)
	defer opened()
	go func() {
		var all sample
		var err error
		for opening.Err() == nil && err == nil { // in short turns, so that it ends soon after the watches are open
			var one sample
			if one, err = bystander.run(ctx, w, 50*time.Millisecond); err == nil {
				all.add(one)
			}
		}
		meanwhile <- outcome{all, err}
	}()
	began := time.Now()
	open, err := openWatches(ctx, watcher[way], path, n, func(body io.Reader) { _, _ = io.Copy(io.Discard, body) })
	took := time.Since(began)
	opened()
	disturbed := <-meanwhile
	defer open.close()
	if disturbed.err != nil {
		return fmt.Errorf("the other user was refused: %w", disturbed.err)
	}
	if len(open.bodies) == 0 {
		return fmt.Errorf("no watch was opened: %w", err)
	}
	if err != nil { // an API server with too much to do refuses some, also directly
		w.say("%s: %d of %d watches were opened; the first that was not: %v", way, len(open.bodies), n, err)
	}
	if err := pause(ctx, settling); err != nil {
		return err
	}
	after, err := readMemory(w.agent.PID())
	if err != nil {
		return err
	}
	held, err := bystander.run(ctx, w, w.options.turn())
	if err != nil {
		return err
	}
	r.addFigure("watches", way, figure{name: fmt.Sprintf("of %d watches opened", n), unit: "watches", value: float64(len(open.bodies)), atLeast: float64(n)})
	r.addFigure("watches", way, figure{name: "all of them opened after", unit: "s", value: took.Seconds()})
	r.addFigure("watches", way, figure{name: "another user's get before, p99", unit: "ms", value: quantile(milliseconds(calm.latencies), 0.99) - 2})
	r.addFigure("watches", way, figure{name: "another user's get while they open, p99", unit: "ms", value: quantile(milliseconds(disturbed.latencies), 0.99) - 2})
	r.addFigure("watches", way, figure{name: "another user's get while they are held, p99", unit: "ms", value: quantile(milliseconds(held.latencies), 0.99) - 2})
	if way == proxied {
		r.addFigure("watches", way, figure{
			name: "memory of the agent for each", unit: "kB", value: float64(after.all-before.all) / float64(len(open.bodies)) / 1024, atMost: 30,
		})
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// measureEvents changes one ConfigMap that many watch, and takes the time until each of them knows.
func measureEvents(ctx context.Context, w *world, r *report) error {
	const name = "watched"
	if _, err := w.admin.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(name), metav1.CreateOptions{}); err != nil {
		return err
	}
	delays := map[string][]float64{}
	changes := max(5, int(2*w.options.Seconds))
	for range w.options.Rounds {
		for _, way := range ways() {
			some, err := eventDelays(ctx, w, way, name, changes)
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			delays[way] = append(delays[way], some...)
		}
	}
	for _, q := range []struct {
		name  string
		value float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		before := quantile(delays[direct], q.value)
		r.addFigure("events", direct, figure{name: "delay, " + q.name, unit: "ms", value: before})
		r.addFigure("events", proxied, figure{name: "delay, " + q.name, unit: "ms", value: quantile(delays[proxied], q.value), atMost: 1.2 * before})
	}
	return nil
}

func eventDelays(ctx context.Context, w *world, way, name string, changes int) ([]float64, error) {
	clients, err := w.bothClients(connectionsFor(w.options.Watcher))
	if err != nil {
		return nil, err
	}
	there, err := w.admin.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	arrived := make(chan time.Time, w.options.Watcher)
	open, err := openWatches(ctx, clients[way], watchPath(name, there.ResourceVersion), w.options.Watcher, func(body io.Reader) {
		reportLines(body, arrived)
	})
	defer open.close()
	if err != nil {
		return nil, err
	}
	var delays []time.Duration
	for change := range changes {
		if err := pause(ctx, 200*time.Millisecond); err != nil { // idle again
			return nil, err
		}
		patch := fmt.Sprintf(`{"data":{"change":"%d"}}`, change+int(time.Now().UnixMilli()))
		changed := time.Now()
		if _, err := w.admin.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return nil, err
		}
		for range w.options.Watcher {
			select {
			case at := <-arrived:
				delays = append(delays, at.Sub(changed))
			case <-time.After(openTimeout):
				return nil, fmt.Errorf("after %s, %d of %d events have arrived", openTimeout, len(delays)%w.options.Watcher, w.options.Watcher)
			}
		}
	}
	return milliseconds(delays), nil
}

// reportLines says when each line has arrived: one event.
func reportLines(body io.Reader, arrived chan<- time.Time) {
	buffer := make([]byte, 8<<10)
	for {
		n, err := body.Read(buffer)
		for _, c := range buffer[:n] {
			if c == '\n' {
				arrived <- time.Now()
			}
		}
		if err != nil {
			return
		}
	}
}

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
	m, err := readMemory(w.agent.PID())
	if err != nil {
		return err
	}
	const mega = 1 << 20
	r.addFigure("memory", proxied, figure{name: "resident memory, idle", unit: "MB", value: float64(m.all) / mega, atMost: 40})
	r.addFigure("memory", proxied, figure{name: "of it the program's own pages", unit: "MB", value: float64(m.files) / mega})
	return nil
}
