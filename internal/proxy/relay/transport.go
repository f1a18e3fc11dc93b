package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/third_party/forked/golang/netutil"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	dialTimeout = 5 * time.Second
	// A dead connection is detected after the idle time and the ping time, 45 s in all.
	pingAfter = 30 * time.Second
	pingWait  = 15 * time.Second
)

// Reasons why a request could not be forwarded, or the API server's response could not be used.
const (
	problemUnreachable   = "unreachable"
	problemLost          = "connection_lost"
	problemRefusedStream = "closed_before_use"
	problemNoCredential  = "no_credential"
	problemCredential    = "credential_refused"
	problemTooLarge      = "header_too_large"
	problemProtocol      = "wrong_protocol"
)

// Upstream sends requests to the API server. It adds no credential. Ordinary requests use pooled HTTP/1.1 connections.
// Streams, and requests whose body is still arriving, share a few HTTP/2 connections. An upgrade request gets an
// HTTP/1.1 connection of its own.
type Upstream struct {
	address *url.URL
	plain   *HTTP1 // nil when the API server is behind a proxy: then these requests use HTTP/2
	streams []*http.Transport
	upgrade *http.Transport
	next    atomic.Uint32
	// Problems counts failures by their name in metrics. No name is added later.
	Problems map[string]*atomic.Int64
}

// NewUpstream takes address, CA and dialer from config, but no credentials. It uses about as many stream connections as
// processors.
func NewUpstream(config *rest.Config, processors int) (*Upstream, error) {
	config = rest.AnonymousClientConfig(config)
	address, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's address: %w", err)
	}
	if address.Scheme != "https" {
		return nil, fmt.Errorf("the API server's address %q is not https", address.Redacted())
	}
	config.NextProtos = []string{"http/1.1"} // net/http adds HTTP/2 where it is enabled
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's CA: %w", err)
	}
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: pingAfter, Control: boundUpstream}).DialContext
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = utilnet.NewProxierWithNoProxyCIDR(http.ProxyFromEnvironment)
	}
	stream := &http.Transport{
		Proxy:               proxy,
		DialContext:         dial,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: handshakeTimeout,
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     90 * time.Second,
		// Pass on the client's encoding unchanged.
		DisableCompression: true,
		Protocols:          new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingWait, MaxReceiveBufferPerStream: streamWindow,
		},
	}
	stream.Protocols.SetHTTP1(true)
	u := &Upstream{address: address, upgrade: stream.Clone(), Problems: map[string]*atomic.Int64{}}
	// The connection of an upgrade request is not reused, whatever the response was.
	u.upgrade.DisableKeepAlives = true
	stream.Protocols.SetHTTP2(true)
	for range min(max(processors, 2), 8) {
		u.streams = append(u.streams, stream.Clone())
	}
	for _, name := range []string{
		problemUnreachable, problemLost, problemRefusedStream, problemNoCredential, problemCredential, problemTooLarge,
		problemProtocol,
	} {
		u.Problems[name] = new(atomic.Int64)
	}
	between, err := proxy(&http.Request{URL: address})
	if err != nil {
		return nil, fmt.Errorf("finding the HTTP proxy for the API server: %w", err)
	}
	if between == nil {
		u.plain = NewHTTP1(netutil.CanonicalAddr(address), tlsConfig, dial)
	}
	return u, nil
}

// problem counts a problem and returns its status.
func (u *Upstream) problem(name string, status error) error {
	u.Problems[name].Add(1)
	return status
}

// Address returns the address of the API server.
func (u *Upstream) Address() *url.URL { return u.address }

// RoundTrip implements http.RoundTripper.
func (u *Upstream) RoundTrip(req *http.Request) (*http.Response, error) {
	state := request.From(req.Context())
	if state != nil && state.Upgrade != "" {
		return u.upgrade.RoundTrip(req)
	}
	coming := state != nil && req.GetBody == nil && hasBody(req)
	if u.plain != nil && !coming && (state == nil || !state.LongRunning) {
		return u.plain.RoundTrip(req)
	}
	return u.streams[int(u.next.Add(1))%len(u.streams)].RoundTrip(req)
}

// Close closes unused connections.
func (u *Upstream) Close() {
	u.upgrade.CloseIdleConnections()
	for _, t := range u.streams {
		t.CloseIdleConnections()
	}
	if u.plain != nil {
		u.plain.CloseIdleConnections()
	}
}

// neverSent is true when err means that the API server has not received the request, so that a retry is safe.
func neverSent(err error) bool {
	var dialing *net.OpError
	if errors.As(err, &dialing) && dialing.Op == "dial" {
		return true
	}
	var resolving *net.DNSError
	var certificate *tls.CertificateVerificationError
	var handshake tls.RecordHeaderError
	return errors.As(err, &resolving) || errors.As(err, &certificate) || errors.As(err, &handshake) ||
		strings.Contains(err.Error(), "TLS handshake timeout") // net/http does not export its type
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)
