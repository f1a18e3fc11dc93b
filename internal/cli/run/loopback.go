package run

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	// loopbackLife is the lifetime of the proxy's certificate, longer than any run.
	loopbackLife = 10 * 365 * 24 * time.Hour
	// renewalTimeout is how long a request waits for a new credential when the current one has expired, for example
	// while the computer slept.
	renewalTimeout = 10 * time.Second
)

// loopback is the proxy of one run. It listens on loopback and requires the run's own token. It adds the credential and
// the impersonation headers. The program's processes share its connections to the cluster.
type loopback struct {
	url      string
	caBundle []byte
	token    string

	server  *http.Server
	target  *url.URL
	config  *rest.Config // for the cluster, without a credential
	now     func() time.Time
	refused func() // called when the cluster refuses the credential, or it has expired

	mu       sync.Mutex
	upstream *upstream
}

// upstream forwards requests to the cluster with one credential.
type upstream struct {
	http.Handler

	connections connections
	certificate string // client certificate of the connections; may be empty
	acts        bool   // uses impersonation headers
	expiry      time.Time
	replaced    chan struct{} // closed when there is a new upstream
}

// startLoopback starts a proxy to the cluster of config. Call use before the first request.
func startLoopback(config *rest.Config, now func() time.Time, refused func()) (*loopback, error) {
	target, _, err := rest.DefaultServerURL(config.Host, "", schema.GroupVersion{}, true)
	if err != nil {
		return nil, err
	}
	anonymous := rest.AnonymousClientConfig(config)
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &loopback{
		url: "https://" + listener.Addr().String(), token: rand.Text(), target: target, config: anonymous, now: now,
		refused: refused,
	}
	pair, err := l.certify(now())
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	l.server = &http.Server{
		Handler:           http.HandlerFunc(l.serve),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}},
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // the program owns the terminal
	}
	go func() { _ = l.server.ServeTLS(listener, "", "") }() // until close
	return l, nil
}

// certify creates the serving certificate and its CA bundle.
func (l *loopback) certify(now time.Time) (tls.Certificate, error) {
	ca, err := certs.NewCA("pinniped run", now, loopbackLife)
	if err != nil {
		return tls.Certificate{}, err
	}
	names := certs.SANs{DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	pair, err := ca.IssueServing(names, now, loopbackLife)
	if err != nil {
		return tls.Certificate{}, err
	}
	l.caBundle = ca.CertPEM()
	return tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
}

// use sets the credential for later requests. Pending requests continue.
func (l *loopback) use(credential *login.Credential) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.upstream
	next := &upstream{
		certificate: credential.ClientCertificateData, expiry: credential.Expiry, replaced: make(chan struct{}),
		acts: credential.Impersonate != nil,
	}
	if before != nil && before.certificate == next.certificate {
		next.connections = before.connections
	} else {
		config := *l.config
		config.CertData, config.KeyData = []byte(credential.ClientCertificateData), []byte(credential.ClientKeyData)
		var err error
		if next.connections, err = connect(&config); err != nil {
			return err
		}
	}
	var sender http.RoundTripper = next.connections
	if credential.Token != "" {
		sender = transport.NewBearerAuthRoundTripper(credential.Token, sender)
	}
	if user := credential.Impersonate; user != nil {
		sender = transport.NewImpersonatingRoundTripper(transport.ImpersonationConfig{
			UserName: user.User, UID: user.UID, Groups: user.Groups, Extra: user.Extra,
		}, sender)
	}
	next.Handler = l.forward(sender)
	l.upstream = next
	if before != nil {
		close(before.replaced)
		if before.certificate != next.certificate {
			before.connections.closeIdle()
		}
	}
	return nil
}

// current returns the current upstream. If its credential has expired, it waits up to renewalTimeout for the next one.
func (l *loopback) current(ctx context.Context) *upstream {
	l.mu.Lock()
	now := l.upstream
	l.mu.Unlock()
	if now.expiry.IsZero() || l.now().Before(now.expiry) {
		return now
	}
	l.refused()
	select {
	case <-now.replaced:
	case <-time.After(renewalTimeout):
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.upstream
}

// serve forwards requests that have the run's token. Errors are plain text, because client-go's discovery does not show
// the message of a Status.
func (l *loopback) serve(w http.ResponseWriter, req *http.Request) {
	want := sha256.Sum256([]byte("Bearer " + l.token))
	got := sha256.Sum256([]byte(req.Header.Get("Authorization")))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		const why = "pinniped run: the request does not have the token of this run's kubeconfig"
		http.Error(w, why, http.StatusUnauthorized)
		return
	}
	req.Header.Del("Authorization")
	way := l.current(req.Context())
	if way.acts && impersonates(req.Header) {
		// Its headers would be lost, or mixed with those of the login.
		const why = "pinniped run: this login itself uses impersonation, so it cannot impersonate another user: omit --as"
		http.Error(w, why, http.StatusForbidden)
		return
	}
	way.ServeHTTP(w, req)
}

// forward returns a proxy to the cluster that sends requests with sender.
func (l *loopback) forward(sender http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(l.target)
			r.Out.URL.RawQuery = r.In.URL.RawQuery // unchanged
		},
		Transport:     sender,
		FlushInterval: -1, // stream watches and logs
		ModifyResponse: func(response *http.Response) error {
			if response.StatusCode == http.StatusUnauthorized {
				l.refused()
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			if req.Context().Err() == nil {
				why := fmt.Sprintf("pinniped run: connecting to %q: %v", l.target.Redacted(), err)
				http.Error(w, why, http.StatusBadGateway)
			}
		},
		ErrorLog: log.New(io.Discard, "", 0), // the program owns the terminal
	}
}

func impersonates(header http.Header) bool {
	for name := range header {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// close stops the proxy and aborts pending requests.
func (l *loopback) close() { _ = l.server.Close() }

// connections are the connections to the cluster: upgrades need HTTP/1.1; other requests share HTTP/2.
type connections struct{ shared, upgrades *http.Transport }

func connect(config *rest.Config) (connections, error) {
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	one := func(http2 bool) (*http.Transport, error) {
		tlsConfig, err := rest.TLSConfigFor(config)
		if err != nil {
			return nil, err
		}
		protocols := &http.Protocols{}
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(http2)
		return &http.Transport{
			Proxy:               proxy,
			DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig:     tlsConfig,
			TLSHandshakeTimeout: 10 * time.Second,
			Protocols:           protocols,
			HTTP2:               &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
			MaxIdleConnsPerHost: 32,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true, // as the program requests
		}, nil
	}
	shared, err := one(true)
	if err != nil {
		return connections{}, err
	}
	upgrades, err := one(false)
	return connections{shared, upgrades}, err
}

// RoundTrip implements http.RoundTripper.
func (c connections) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Upgrade") != "" {
		return c.upgrades.RoundTrip(req)
	}
	return c.shared.RoundTrip(req)
}

func (c connections) closeIdle() {
	c.shared.CloseIdleConnections()
	c.upgrades.CloseIdleConnections()
}
