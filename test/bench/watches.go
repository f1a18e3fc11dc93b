package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
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
	each   func(io.Reader)
	life   context.Context //nolint:containedctx // of all watches
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu     sync.Mutex
	bodies []io.ReadCloser
}

// newWatching makes one without watches. Whatever arrives on one is given to each.
func newWatching(ctx context.Context, c *client, each func(io.Reader)) *watching {
	o := &watching{client: c, each: each}
	o.life, o.cancel = context.WithCancel(ctx)
	return o
}

// open opens one more watch, over one of the client's connections.
func (o *watching) open(connection int, path string) error {
	one, stop := context.WithCancelCause(o.life)
	late := time.AfterFunc(openTimeout, func() { stop(errors.New("it took too long")) })
	answer, err := o.client.open(one, connection, get(path))
	late.Stop()
	if err != nil {
		stop(nil)
		return fmt.Errorf("opening a watch: %w", err)
	}
	context.AfterFunc(o.life, func() { stop(nil) })
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bodies = append(o.bodies, answer.Body)
	o.group.Go(func() { o.each(answer.Body) })
	return nil
}

func (o *watching) close() {
	o.cancel()
	o.group.Wait()
	for _, body := range o.bodies {
		_ = body.Close()
	}
	o.client.close()
}

// openWatches opens n watches at once, spread over connections. It returns those that were opened, with the first
// error.
func openWatches(ctx context.Context, c *client, path string, n int, each func(io.Reader)) (*watching, error) {
	o := newWatching(ctx, c, each)
	failed := make(chan error, n)
	var opening sync.WaitGroup
	for i := range n {
		opening.Go(func() {
			if err := o.open(i, path); err != nil {
				failed <- err
			}
		})
	}
	opening.Wait()
	select {
	case err := <-failed:
		return o, err
	default:
		return o, nil
	}
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
	for _, way := range w.ways() {
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
	bystander := bystander(other[way])
	calm, err := bystander.run(ctx, w, w.options.turn())
	if err != nil {
		return err
	}
	before, err := readMemory(w.agentOf(way).PID())
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
	after, err := readMemory(w.agentOf(way).PID())
	if err != nil {
		return err
	}
	held, err := bystander.run(ctx, w, w.options.turn())
	if err != nil {
		return err
	}
	r.addFigure(
		"watches",
		way,
		figure{
			name:    fmt.Sprintf("of %d watches opened", n),
			unit:    "watches",
			value:   float64(len(open.bodies)),
			atLeast: float64(n),
		},
	)
	r.addFigure("watches", way, figure{name: "all of them opened after", unit: "s", value: took.Seconds()})
	r.addFigure("watches", way, figure{name: "another user's get before, p99", unit: "ms", value: waited(calm)})
	r.addFigure(
		"watches",
		way,
		figure{name: "another user's get while they open, p99", unit: "ms", value: waited(disturbed.sample)},
	)
	r.addFigure(
		"watches",
		way,
		figure{name: "another user's get while they are held, p99", unit: "ms", value: waited(held)},
	)
	if way != direct {
		r.addFigure("watches", way, figure{
			name:   "memory of the agent for each",
			unit:   "kB",
			value:  float64(after.anonymous-before.anonymous) / float64(len(open.bodies)) / 1024,
			atMost: 30,
		})
	}
	return nil
}

// bystanderPause is how long the bystander waits before each request.
const bystanderPause = 2 * time.Millisecond

// bystander is somebody who asks now and then.
func bystander(c *client) loop {
	return loop{workers: 1, call: func(ctx context.Context, _, _ int) (int64, error) {
		time.Sleep(bystanderPause)
		asked := time.Now()
		_, err := c.do(ctx, 0, get(configMaps+"/"+objectName(1)))
		return int64(time.Since(asked)), err
	}}
}

// waited is the bystander's 99th percentile, in milliseconds.
func waited(s sample) float64 {
	return quantile(milliseconds(s.latencies), 0.99) - float64(bystanderPause.Milliseconds())
}

const (
	heldWorkers = 32
	heldTries   = 20
	heldPause   = time.Second // before a watch is tried again, as clients do that are told to come back later
)

// measureHeld opens very many watches through the proxy, a few at a time, as fast as the API server takes them, has
// one event reach all of them, and looks at what holding them costs.
func measureHeld(ctx context.Context, w *world, r *report) error {
	const name = "held"
	there, err := w.admin.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(name), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n := w.options.Held
	watchers, err := w.bothClients(connectionsFor(n))
	if err != nil {
		return err
	}
	other, err := w.bothClients(1)
	if err != nil {
		return err
	}
	before, err := readMemory(w.agent.PID())
	if err != nil {
		return err
	}
	arrived := make(chan time.Time, n) // one for each watch, whatever else comes
	open := newWatching(ctx, watchers[proxied], func(body io.Reader) {
		if _, err := io.ReadFull(body, make([]byte, 1)); err == nil {
			arrived <- time.Now()
		}
		_, _ = io.Copy(io.Discard, body)
	})
	defer open.close()
	var again atomic.Int64
	began := time.Now()
	err = parallel(ctx, heldWorkers, n, func(i int) error {
		for try := 1; ; try++ {
			err := open.open(i, watchPath(name, there.ResourceVersion))
			if err == nil || try == heldTries {
				return err
			}
			again.Add(1)
			if err := pause(ctx, heldPause); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return fmt.Errorf("after %d watches: %w", len(open.bodies), err)
	}
	took := time.Since(began)
	if err := pause(ctx, settling); err != nil {
		return err
	}
	after, err := readMemory(w.agent.PID())
	if err != nil {
		return err
	}
	calm, err := bystander(other[proxied]).run(ctx, w, w.options.turn())
	if err != nil {
		return err
	}
	changed := time.Now()
	if _, err := w.admin.CoreV1().
		ConfigMaps(namespace).
		Patch(ctx, name, types.MergePatchType, []byte(`{"data":{"change":"1"}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	var last time.Time
	reached, given := 0, time.After(openTimeout)
	for ; reached < n; reached++ {
		select {
		case last = <-arrived:
			continue
		case <-given:
		}
		break
	}
	r.addFigure(
		"held",
		proxied,
		figure{
			name:    fmt.Sprintf("of %d watches held, that got an event", n),
			unit:    "watches",
			value:   float64(reached),
			atLeast: float64(n),
		},
	)
	r.addFigure(
		"held",
		proxied,
		figure{name: "the last of them got it after", unit: "ms", value: float64(last.Sub(changed).Milliseconds())},
	)
	r.addFigure(
		"held",
		proxied,
		figure{name: fmt.Sprintf("all of them opened, %d at a time, after", heldWorkers), unit: "s", value: took.Seconds()},
	)
	r.addFigure(
		"held",
		proxied,
		figure{name: "attempts that failed meanwhile, and were repeated", unit: "", value: float64(again.Load())},
	)
	r.addFigure(
		"held",
		proxied,
		figure{name: "another user's get while they are held, p99", unit: "ms", value: waited(calm)},
	)
	r.addFigure("held", proxied, figure{
		name:   "memory of the agent for each",
		unit:   "kB",
		value:  float64(after.anonymous-before.anonymous) / float64(n) / 1024,
		atMost: 30,
	})
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
