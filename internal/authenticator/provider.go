package authenticator

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/keyset"
)

const (
	wellKnownPath = "/.well-known/openid-configuration"
	// keysPause is the minimum time between two fetches of an issuer's keys because of tokens with an unknown key,
	// which anyone can create.
	keysPause = 5 * time.Second
)

// ProviderOptions configures a Provider.
type ProviderOptions struct {
	// Issuer is the issuer URL in tokens.
	Issuer string
	// Roots verify the issuer's certificate; nil means the system's.
	Roots *x509.CertPool
	// Proxy returns the HTTP proxy for a request, as http.ProxyFromEnvironment does; nil means none.
	Proxy func(*http.Request) (*url.URL, error)
	Clock clock.PassiveClock
}

// Provider is an OpenID Connect issuer and its signing keys. While the issuer is unavailable, it uses the last known
// keys. It is safe for concurrent use.
type Provider struct {
	issuer    string
	client    *http.Client
	transport *http.Transport
	clock     clock.PassiveClock

	keysURL atomic.Pointer[string] // from discovery
	keys    atomic.Pointer[keyset.Set]
	flights singleflight.Group

	mu      sync.Mutex
	fetched time.Time // when the keys were requested last
}

// NewProvider returns a Provider without keys. It sends no requests.
func NewProvider(options ProviderOptions) *Provider {
	transport := newTransport(options.Roots, options.Proxy)
	return &Provider{
		issuer:    options.Issuer,
		transport: transport,
		client: &http.Client{
			Transport: boundedResponses{transport},
			Timeout:   defaultTimeout,
			CheckRedirect: func(request *http.Request, via []*http.Request) error {
				switch {
				case request.URL.Scheme != "https":
					return errors.New("it redirects away from https")
				case len(via) >= 10:
					return errors.New("stopped after 10 redirects")
				}
				return nil
			},
		},
		clock: options.Clock,
	}
}

// Close closes idle connections. The Provider can still be used.
func (p *Provider) Close() { p.transport.CloseIdleConnections() }

// Discover returns the URL of the keys from the issuer's discovery document. It does not validate it: see UseKeysURL.
func (p *Provider) Discover(ctx context.Context) (keysURL string, err error) {
	var document struct {
		Issuer  string `json:"issuer"`
		KeysURL string `json:"jwks_uri"`
	}
	if err := p.get(ctx, strings.TrimSuffix(p.issuer, "/")+wellKnownPath, &document); err != nil {
		return "", err
	}
	if document.Issuer != p.issuer {
		return "", &IssuerMismatchError{named: bounded(document.Issuer), issuer: p.issuer}
	}
	return document.KeysURL, nil
}

// IssuerMismatchError is the error when an issuer's discovery document names another issuer.
type IssuerMismatchError struct{ named, issuer string }

func (e *IssuerMismatchError) Error() string {
	return fmt.Sprintf("the issuer is %q, not %q", e.named, e.issuer)
}

// UseKeysURL sets the URL of the keys. The current keys remain until others are fetched.
func (p *Provider) UseKeysURL(keysURL string) { p.keysURL.Store(&keysURL) }

// Ready is true when there are keys.
func (p *Provider) Ready() bool { return p.keys.Load() != nil }

// FetchKeys replaces the keys with the issuer's current ones.
func (p *Provider) FetchKeys(ctx context.Context) error {
	from := p.keysURL.Load()
	if from == nil {
		return errors.New("the URL of the keys is unknown")
	}
	p.mu.Lock()
	p.fetched = p.clock.Now()
	p.mu.Unlock()
	var document json.RawMessage
	if err := p.get(ctx, *from, &document); err != nil {
		return err
	}
	keys, err := keyset.Parse(document)
	if err != nil {
		return err
	}
	p.keys.Store(keys)
	return nil
}

// Skipped returns the issuer's keys that cannot be used.
func (p *Provider) Skipped() []keyset.Skipped {
	if keys := p.keys.Load(); keys != nil {
		return keys.Skipped
	}
	return nil
}

// VerifySignature returns the payload of a token that is signed with one of the issuer's keys. It does not validate the
// payload. A token with an unknown key makes it fetch the keys; any other needs no request.
func (p *Provider) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := p.verify(ctx, token)
	if err == nil || !p.mayAskAgain() {
		return payload, unusable(ctx, err)
	}
	flight := p.flights.DoChan("keys", func() (any, error) {
		if !p.mayAskAgain() { // another request has just fetched them
			return nil, nil
		}
		fetching, cancel := context.WithTimeout(context.WithoutCancel(ctx), defaultTimeout)
		defer cancel()
		return nil, p.FetchKeys(fetching)
	})
	select {
	case landed := <-flight:
		if skipped, ok := errors.AsType[*keyset.SkippedError](landed.Err); ok {
			return nil, unusable(ctx, cmp.Or(skipped.Skips(token), err))
		}
		if landed.Err != nil {
			return nil, unavailable(ctx, landed.Err)
		}
	case <-ctx.Done():
		return nil, unavailable(ctx, ctx.Err())
	}
	payload, err = p.verify(ctx, token)
	return payload, unusable(ctx, err)
}

// verification returns details of VerifySignature past the API server's code, which converts errors to text.
type verification struct {
	unavailable error                // no key verified the signature, and the keys could not be fetched
	skipped     *keyset.SkippedError // the key that signed the token cannot be used
}

type verificationKey struct{}

func unavailable(ctx context.Context, err error) error {
	err = fmt.Errorf("fetching the issuer's keys: %w", err)
	if trace, ok := ctx.Value(verificationKey{}).(*verification); ok {
		trace.unavailable = err
	}
	return err
}

// unusable records if err says that the token's key was skipped.
func unusable(ctx context.Context, err error) error {
	trace, ok := ctx.Value(verificationKey{}).(*verification)
	if skipped, is := errors.AsType[*keyset.SkippedError](err); ok && is {
		trace.skipped = skipped
	}
	return err
}

func (p *Provider) verify(ctx context.Context, token string) ([]byte, error) {
	keys := p.keys.Load()
	if keys == nil {
		return nil, errors.New("the issuer has no keys")
	}
	return keys.VerifySignature(ctx, token)
}

func (p *Provider) mayAskAgain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.Since(p.fetched) >= keysPause && p.keysURL.Load() != nil
}

// get reads a JSON document.
func (p *Provider) get(ctx context.Context, from string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end, or given up
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("reading from %s: %w", request.URL.Redacted(), err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s returned status code %d", request.URL.Redacted(), response.StatusCode)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s did not return the expected JSON", request.URL.Redacted())
	}
	return nil
}

// boundedResponses limits the length of responses.
type boundedResponses struct{ next http.RoundTripper }

func (b boundedResponses) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if err == nil {
		response.Body = &boundedBody{ReadCloser: response.Body, left: maxResponseSize}
	}
	return response, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("the response is longer than %d bytes", maxResponseSize)
	}
	return n, err
}
