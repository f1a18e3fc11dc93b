package authenticator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	kjson "sigs.k8s.io/json"
)

const (
	defaultTimeout  = 30 * time.Second
	maxResponseSize = 1 << 20
	dialTimeout     = 10 * time.Second
)

// WebhookOptions configures a Webhook.
type WebhookOptions struct {
	// Endpoint is the https URL of the webhook.
	Endpoint *url.URL
	// Roots verify the webhook's certificate; nil means the system's.
	Roots *x509.CertPool
	// Proxy returns the HTTP proxy for a request, as http.ProxyFromEnvironment does; nil means none.
	Proxy func(*http.Request) (*url.URL, error)
	// Timeout is the timeout of an authentication with all retries; zero means 30 seconds.
	Timeout time.Duration
}

// Webhook is an authenticator that calls a webhook with a TokenReview of authentication.k8s.io/v1beta1. It reuses
// connections and caches no responses. It is safe for concurrent use.
type Webhook struct {
	endpoint  string
	client    *http.Client
	transport *http.Transport
	timeout   time.Duration
	backoff   wait.Backoff
}

var _ Token = (*Webhook)(nil)

// NewWebhook returns an authenticator that calls a webhook. It does not connect yet. The endpoint must be an https URL.
func NewWebhook(options WebhookOptions) (*Webhook, error) {
	if options.Endpoint == nil || options.Endpoint.Scheme != "https" || options.Endpoint.Host == "" {
		return nil, errors.New("the endpoint of a webhook must be an https URL")
	}
	transport := newTransport(options.Roots, options.Proxy)
	return &Webhook{
		endpoint:  options.Endpoint.String(),
		transport: transport,
		client: &http.Client{
			Transport: transport,
			// The token must only be sent to this endpoint.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		timeout: cmp.Or(options.Timeout, defaultTimeout),
		backoff: wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 4},
	}, nil
}

// newTransport returns a transport for a webhook or an issuer, which reuses connections.
func newTransport(roots *x509.CertPool, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	return &http.Transport{
		Proxy:                  proxy,
		DialContext:            (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        TLSConfig(roots),
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        90 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// TLSConfig returns the client configuration for a webhook or an issuer: TLS 1.2 with authenticated encryption, or 1.3.
func TLSConfig(roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		RootCAs:    roots,
		MinVersion: tls.VersionTLS12,
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
	}
}

// Close closes idle connections. The Webhook can still be used.
func (w *Webhook) Close() { w.transport.CloseIdleConnections() }

// AuthenticateToken calls the webhook. A malformed response is an error.
func (w *Webhook) AuthenticateToken(ctx context.Context, token string) (user.Info, bool, error) {
	if strings.TrimSpace(token) == "" {
		return nil, false, nil
	}
	review := authenticationv1beta1.TokenReview{Spec: authenticationv1beta1.TokenReviewSpec{Token: token}}
	review.SetGroupVersionKind(authenticationv1beta1.SchemeGroupVersion.WithKind("TokenReview"))
	body, err := json.Marshal(&review)
	if err != nil {
		return nil, false, errors.New("encoding the token review") // the cause could quote the token
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	content, err := w.ask(ctx, body)
	if err != nil {
		return nil, false, fmt.Errorf("webhook request: %w", err)
	}
	status, err := decode(content)
	if err != nil {
		return nil, false, fmt.Errorf("reading the webhook's response: %w", err)
	}
	switch {
	case !status.Authenticated && status.Error != "":
		return nil, false, fmt.Errorf("the webhook reports an error: %q", bounded(withoutToken(status.Error, token)))
	case !status.Authenticated:
		return nil, false, nil
	case status.User.Username == "":
		const nameless = "the webhook authenticated a user without a name"
		return nil, false, &Refusal{Reason: ReasonRefused, message: nameless, cause: errors.New(nameless)}
	}
	return userInfo(status.User), true, nil
}

// ask posts the review, and retries temporary failures after a short wait.
func (w *Webhook) ask(ctx context.Context, body []byte) ([]byte, error) {
	backoff := w.backoff
	for {
		content, again, err := w.post(ctx, body)
		if err == nil || !again || backoff.Steps <= 1 {
			return content, err
		}
		timer := time.NewTimer(backoff.Step())
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-timer.C:
		}
	}
}

// post posts the review once. again says whether a failure may be temporary.
func (w *Webhook) post(ctx context.Context, body []byte) (content []byte, again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	// A review changes nothing, so the transport may resend it when a reused connection turns out to be dead. The empty
	// value tells the transport so and is not sent.
	request.Header["Idempotency-Key"] = nil
	response, err := w.client.Do(request)
	if err != nil {
		return nil, mayPass(err), err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end, or given up
	switch {
	case response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= http.StatusInternalServerError:
		again = true
		fallthrough
	case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated:
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxResponseSize)) // so that the connection can be reused
		return nil, again, fmt.Errorf("the webhook returned status code %d", response.StatusCode)
	}
	media, _, malformed := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if malformed == nil && media == "text/html" {
		return nil, false, errors.New("the webhook returned a web page")
	}
	content, err = io.ReadAll(io.LimitReader(response.Body, maxResponseSize+1))
	if err != nil {
		return nil, mayPass(err), fmt.Errorf("reading the webhook's response: %w", err)
	}
	if len(content) > maxResponseSize {
		return nil, false, fmt.Errorf("the webhook's response is longer than %d bytes", maxResponseSize)
	}
	return content, false, nil
}

func mayPass(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || utilnet.IsHTTP2ConnectionLost(err)
}

// decode reads a TokenReview as the API server does: field names are case-sensitive, and a missing apiVersion or kind
// defaults to the requested one.
func decode(content []byte) (authenticationv1beta1.TokenReviewStatus, error) {
	var review authenticationv1beta1.TokenReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(content, &review); err != nil {
		return review.Status, errors.New("not a TokenReview in JSON") // the cause could quote an echoed token
	}
	want := authenticationv1beta1.SchemeGroupVersion.WithKind("TokenReview")
	if version := review.APIVersion; version != "" && version != want.GroupVersion().String() {
		return review.Status, fmt.Errorf("apiVersion is %q, want %q", bounded(version), want.GroupVersion())
	}
	if review.Kind != "" && review.Kind != want.Kind {
		return review.Status, fmt.Errorf("kind is %q, want %q", bounded(review.Kind), want.Kind)
	}
	return review.Status, nil
}

func userInfo(from authenticationv1beta1.UserInfo) user.Info {
	info := &user.DefaultInfo{Name: from.Username, UID: from.UID, Groups: from.Groups}
	if len(from.Extra) > 0 {
		info.Extra = make(map[string][]string, len(from.Extra))
		for name, values := range from.Extra {
			info.Extra[name] = values
		}
	}
	return info
}

// withoutToken removes the token from a text of the webhook, and the password of a "user:password" token.
func withoutToken(text, token string) string {
	text = strings.ReplaceAll(text, token, "[token]")
	if _, password, found := strings.Cut(token, ":"); found && password != "" {
		text = strings.ReplaceAll(text, password, "[token]")
	}
	return text
}
