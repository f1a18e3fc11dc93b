package proxy

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestNoSessionIsResumed checks that no session is resumed, because the client would not be asked for its certificate
// again.
func TestNoSessionIsResumed(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			config := p.clientTLS(p.jane(t))
			config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			config.MinVersion, config.MaxVersion = version, version
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
			for range 2 {
				res := p.open(t.Context(), t, client, "/api")
				_, _ = io.Copy(io.Discard, res.Body) // a ticket comes before its end
				if res.TLS.DidResume {
					t.Error("want no session resumed")
				}
			}
		})
	}
}

func TestHandshakes(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	handshake := func(change func(*tls.Config)) (tls.ConnectionState, error) {
		config := p.clientTLS(nil)
		change(config)
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", p.address)
		if err != nil {
			return tls.ConnectionState{}, err
		}
		defer func() { _ = conn.Close() }()
		return conn.(*tls.Conn).ConnectionState(), nil
	}
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.1": func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS11, tls.VersionTLS11 },
		"CBC": func(c *tls.Config) {
			c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}
		},
	} {
		if _, err := handshake(change); err == nil {
			t.Errorf("%s: want the handshake refused", name)
		}
	}
	for want, change := range map[uint16]func(*tls.Config){
		tls.VersionTLS12: func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
		tls.VersionTLS13: func(c *tls.Config) {},
	} {
		got, err := handshake(change)
		if err != nil || got.Version != want {
			t.Errorf("want version %x, got %x, %v", want, got.Version, err)
		}
	}
	for _, want := range []string{"h2", "http/1.1"} {
		got, err := handshake(func(c *tls.Config) { c.NextProtos = []string{want} })
		if err != nil || got.NegotiatedProtocol != want {
			t.Errorf("want protocol %q, got %q, %v", want, got.NegotiatedProtocol, err)
		}
	}
	var named [][]byte
	stop := errors.New("read enough")
	_, _ = handshake(func(c *tls.Config) {
		c.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			named = info.AcceptableCAs
			return nil, stop
		}
	})
	for _, ca := range [][]byte{p.signerCA.Certificate().RawSubject, p.clusterCA.Certificate().RawSubject} {
		if !slices.ContainsFunc(named, func(n []byte) bool { return string(n) == string(ca) }) {
			t.Errorf("want both client CAs named in the handshake, got %q", named)
		}
	}
}

func TestHTTP2Limits(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	frame := must.Get(p.rawHTTP2(t, nil).ReadFrame())(t)
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok {
		t.Fatalf("want settings first, got %v", frame)
	}
	if got, _ := settings.Value(http2.SettingMaxConcurrentStreams); got != 100 {
		t.Errorf("want 100 streams, got %d", got)
	}
	if got, _ := settings.Value(http2.SettingInitialWindowSize); got != bodyWindow {
		t.Errorf("want %d bytes of a body held, got %d", bodyWindow, got)
	}
	if got, ok := settings.Value(http2.SettingMaxFrameSize); ok && got != maxFrame {
		t.Errorf("want frames of %d bytes, got %d", maxFrame, got)
	}
	if got, _ := settings.Value(http2.SettingMaxHeaderListSize); got < maxHeaderBytes || got > 2*maxHeaderBytes {
		t.Errorf("want headers limited to about %d bytes, got %d", maxHeaderBytes, got)
	}
}

func TestOversizeHeader(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	conn := p.raw(t, nil, "")
	go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nX: "+strings.Repeat("x", 2*maxHeaderBytes)) }()
	if got := readResponse(t, bufio.NewReader(conn)); got.Code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("want 431, got %d", got.Code)
	}
}

// TestKnownCertificates has a client connect whose certificate was verified before. The connection counts for the user
// before its first request. That of a certificate that was not verified yet does not.
func TestKnownCertificates(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := p.jane(t)
	users := func(want int) bool { return p.port.Open() == want && p.port.Unauthenticated() == 0 }
	first := p.rawHTTP2(t, jane)
	if got := p.heldBy("jane", flowcontrol.Connection); got != 0 {
		t.Fatalf("want a new certificate to count for no user, got %d bytes", got)
	}
	first.request(t, 1, false, pseudo("GET", "/api/v1/pods")...)
	first.status(t, 1)
	eventually(t, func() bool { return users(1) })
	p.rawHTTP2(t, jane)
	eventually(t,
		func() bool { return users(2) && p.heldBy("jane", flowcontrol.Connection) > flowcontrol.ConnectionBytes })
}

// TestCertificatesOfManyGroups presents a certificate of the maximum size that the Concierge APIs issue (maxCertificate
// there).
func TestCertificatesOfManyGroups(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const most = 28 << 10
	names := func(count int) (groups []string) {
		for i := range count {
			groups = append(groups, fmt.Sprintf("%060d", i))
		}
		return groups
	}
	count := 300
	for len(clientCertificate(t, p.signerCA, "jane", names(count+1)...).Certificate[0]) <= most {
		count++
	}
	client := p.client(t, clientCertificate(t, p.signerCA, "jane", names(count)...))
	if got := p.get(t, client, "/a", nil); got.Code != http.StatusOK {
		t.Errorf("%d groups: got %d", count, got.Code)
	}
}

// TestHeadersThatDoNotEnd sends an endless header in pieces.
func TestHeadersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.tune = func(s *Server) {
		s.http.HTTP2.SendPingTimeout, s.http.HTTP2.PingTimeout = 300*time.Millisecond, 200*time.Millisecond
	}
	p.start(t)
	c := p.rawHTTP2(t, nil)
	begun := http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(t, pseudo("GET", "/a")...), EndStream: true}
	must.Do(t, c.WriteHeaders(begun))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.statuses(t)
	}()
	timeout := time.After(15 * time.Second)
	for {
		select {
		case <-ended:
			return
		case <-timeout:
			t.Fatal("want the connection closed")
		case <-time.After(20 * time.Millisecond):
			_ = c.WriteContinuation(1, false, nil)
		}
	}
}
