package main

import (
	"context"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// eventsMeasured is what one round of events gave.
type eventsMeasured struct {
	delays []float64      // in milliseconds
	spent  processorTimes // while events were on their way
}

// measureEvents changes one ConfigMap that many watch. It takes the time until each of them knows, and the processor
// time of the proxy for each event.
func measureEvents(ctx context.Context, w *world, r *report) error {
	const name = "watched"
	if _, err := w.admin.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(name), metav1.CreateOptions{}); err != nil {
		return err
	}
	changes := max(5, int(2*w.options.Seconds))
	rounds := map[string][]eventsMeasured{} // by way
	for range w.options.Rounds {
		for _, way := range w.ways() {
			one, err := eventDelays(ctx, w, way, name, changes)
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			rounds[way] = append(rounds[way], one)
		}
	}
	for _, q := range []struct {
		name  string
		share float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		var before float64
		for _, way := range w.ways() {
			var values []float64
			for _, one := range rounds[way] {
				values = append(values, quantile(one.delays, q.share))
			}
			f := figure{name: "delay, " + q.name, unit: "ms", value: median(values), rounds: values}
			if way == direct {
				before = f.value
			} else {
				f.atMost = 1.2 * before
			}
			r.addFigure("events", way, f)
		}
	}
	for _, way := range w.ways()[1:] {
		r.addFigure("events", way, spentOnEvents(way, rounds[way]))
	}
	return nil
}

// spentOnEvents is the processor time for each event. A round takes a few ticks of the clock that it is counted in, so
// all rounds count together.
func spentOnEvents(way string, rounds []eventsMeasured) figure {
	var spent time.Duration
	events := 0
	for _, one := range rounds {
		events += len(one.delays)
		if way == other {
			spent += one.spent.other
		} else {
			spent += one.spent.proxy
		}
	}
	return figure{
		name: "CPU of the proxy for each event", unit: "µs",
		value: float64(spent.Microseconds()) / float64(events),
	}
}

func eventDelays(ctx context.Context, w *world, way, name string, changes int) (eventsMeasured, error) {
	clients, err := w.bothClients(connectionsFor(w.options.Watcher))
	if err != nil {
		return eventsMeasured{}, err
	}
	there, err := w.admin.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return eventsMeasured{}, err
	}
	arrived := make(chan time.Time, w.options.Watcher)
	path := watchPath(name, there.ResourceVersion)
	open, err := openWatches(ctx, clients[way], path, w.options.Watcher, func(body io.Reader) {
		reportLines(body, arrived)
	})
	defer open.close()
	if err != nil {
		return eventsMeasured{}, err
	}
	if err := pause(ctx, quietBeforeEvents); err != nil {
		return eventsMeasured{}, err
	}
	before, err := w.processorTimes()
	if err != nil {
		return eventsMeasured{}, err
	}
	var delays []time.Duration
	for change := range changes {
		if err := pause(ctx, quietBeforeEvents); err != nil {
			return eventsMeasured{}, err
		}
		patch := fmt.Sprintf(`{"data":{"change":"%d"}}`, change+int(time.Now().UnixMilli()))
		changed := time.Now()
		if _, err := w.admin.CoreV1().
			ConfigMaps(namespace).
			Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return eventsMeasured{}, err
		}
		for got := range w.options.Watcher {
			select {
			case at := <-arrived:
				delays = append(delays, at.Sub(changed))
			case <-time.After(openTimeout):
				return eventsMeasured{}, fmt.Errorf("after %s, %d of %d events have arrived", openTimeout, got, w.options.Watcher)
			}
		}
	}
	after, err := w.processorTimes()
	return eventsMeasured{milliseconds(delays), after.minus(before)}, err
}

// quietBeforeEvents is how long everything is idle before an event.
const quietBeforeEvents = 200 * time.Millisecond

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
