package main

import (
	"bytes"
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
	// watchesPerConnection is below the limit of streams per connection.
	watchesPerConnection = 75
	eventTimeout         = 30 * time.Second
)

// watches are open watches on one target. All events arrive in one channel.
type watches struct {
	object  string // watched object, one for each target
	client  *client
	arrived chan time.Time
	cancel  context.CancelFunc
	group   sync.WaitGroup
	bytes   int64 // of the proxy, per watch
}

// startWatches opens watches and keeps them open. An operation is an event that has reached one of them.
func startWatches(ctx context.Context, e *environment, t *target) (measurement, func(), error) {
	if err := e.createConfigMap(ctx, configMap(namespace, "watched-"+t.name)); err != nil {
		return nil, nil, err
	}
	w, err := e.openWatches(ctx, t, e.options.watches)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, d time.Duration) (sample, error) {
		s, err := e.account(t, e.options.watches, func() ([]time.Duration, error) {
			var all []time.Duration
			for began := time.Now(); len(all) == 0 || time.Since(began) < d; {
				delays, err := e.change(ctx, w)
				if err != nil {
					return nil, err
				}
				all = append(all, delays...)
			}
			return all, nil
		})
		s.perWatch = w.bytes
		return s, err
	}, w.close, nil
}

func (e *environment) openWatches(ctx context.Context, t *target, n int) (_ *watches, err error) {
	name := "watched-" + t.name
	object, err := e.admin.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c, err := e.newUserClient(t, (n+watchesPerConnection-1)/watchesPerConnection, true)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(ctx)
	w := &watches{object: name, client: c, arrived: make(chan time.Time, n), cancel: cancel}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	var before, after int64
	if t.process != nil {
		if _, before, err = residentMemory(t.process.PID()); err != nil {
			return nil, err
		}
	}
	path := configMaps + "?watch=1&fieldSelector=metadata.name%3D" + name + "&resourceVersion=" + object.ResourceVersion
	for i := range n {
		response, err := c.open(life, i, get(path))
		if err != nil {
			return nil, fmt.Errorf("opening a watch: %w", err)
		}
		w.group.Go(func() {
			defer response.Body.Close() //nolint:errcheck // it was only read
			w.report(response.Body)
		})
	}
	if t.process != nil {
		if _, after, err = residentMemory(t.process.PID()); err != nil {
			return nil, err
		}
		w.bytes = max(1, (after-before)/int64(n))
	}
	return w, nil
}

// report sends the arrival time of each event, which is one line.
func (w *watches) report(body io.Reader) {
	buffer := make([]byte, 8<<10)
	for {
		n, err := body.Read(buffer)
		for range bytes.Count(buffer[:n], []byte("\n")) {
			w.arrived <- time.Now()
		}
		if err != nil {
			return
		}
	}
}

func (w *watches) close() {
	w.cancel()
	w.group.Wait()
	w.client.close()
}

// change changes the object and returns the latency of the event on each watch.
func (e *environment) change(ctx context.Context, w *watches) ([]time.Duration, error) {
	patch := fmt.Sprintf(`{"data":{"change":"%d"}}`, time.Now().UnixNano())
	changed := time.Now()
	_, err := e.admin.CoreV1().ConfigMaps(namespace).
		Patch(ctx, w.object, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("changing the watched object: %w", err)
	}
	timeout := time.NewTimer(eventTimeout)
	defer timeout.Stop()
	delays := make([]time.Duration, 0, cap(w.arrived))
	for range cap(w.arrived) {
		select {
		case at := <-w.arrived:
			delays = append(delays, at.Sub(changed))
		case <-timeout.C:
			return nil, errors.New("an event did not arrive")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return delays, nil
}
