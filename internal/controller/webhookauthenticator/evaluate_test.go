package webhookauthenticator

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var testNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newBundle(t *testing.T) []byte {
	t.Helper()
	return must.Get(certs.NewCA("webhook CA", testNow, time.Hour))(t).CertPEM()
}

func inline(bundle []byte) authenticators.CABundle {
	return authenticators.CABundle{PEM: bundle, Condition: authenticators.Good(authenticators.TypeTLS, "fine")}
}

func TestCheckEndpoint(t *testing.T) {
	t.Parallel()
	proxy := func(r *http.Request) (*url.URL, error) {
		switch r.URL.Host {
		case "proxied.example.com":
			return &url.URL{Scheme: "http", Host: "proxy"}, nil
		case "bad.example.com":
			return nil, errors.New("bad proxy")
		default:
			return nil, nil
		}
	}
	const valid = "spec.endpoint is a valid URL"
	for _, test := range []struct {
		endpoint, reason, message, address string
		proxied                            bool
	}{
		{"https://x.example.com/a?b=c", "Success", valid, "x.example.com:443", false},
		{"https://x.example.com:8443", "Success", valid, "x.example.com:8443", false},
		{"https://[fd00::1]", "Success", valid, "[fd00::1]:443", false},
		{"https://proxied.example.com", "Success", valid, "proxied.example.com:443", true},
		{"https://bad.example.com", "InvalidEndpointCannotDetermineProxy", "unable to determine", "", false},
		{
			"http://x.example.com", "InvalidEndpointURLScheme",
			"spec.endpoint URL http://x.example.com has invalid scheme, require 'https'", "", false,
		},
		{
			"https://ann:secret@[::1", "InvalidEndpointURL", "spec.endpoint URL is invalid: missing ']' in host", "",
			false,
		},
		{"https://", "InvalidEndpointURL", "it has no host", "", false},
		{"https://:443", "InvalidEndpointURL", "it has no host", "", false},
	} {
		t.Run(test.endpoint, func(t *testing.T) {
			t.Parallel()
			parsed, proxied, condition := checkEndpoint(test.endpoint, proxy)
			if condition.Reason != test.reason || !strings.Contains(condition.Message, test.message) ||
				strings.Contains(condition.Message, "secret") ||
				proxied != test.proxied {
				t.Errorf("got %+v, proxied %v", condition, proxied)
			}
			if (parsed != nil) != (test.address != "") {
				t.Fatalf("got URL %v", parsed)
			}
			if parsed != nil && address(parsed) != test.address {
				t.Errorf("want address %q, got %q", test.address, address(parsed))
			}
		})
	}
}

// dialer is the network in a test.
type dialer struct {
	err   error
	calls int
}

func (d *dialer) dial(context.Context, string, *x509.CertPool) error { d.calls++; return d.err }

// summary returns the reasons of the conditions, in order.
func summary(f authenticators.Evaluation) string {
	var reasons []string
	for _, condition := range f.Conditions {
		reasons = append(reasons, condition.Reason)
	}
	return fmt.Sprintf("%v usable=%v", reasons, f.Known != nil && f.Known.InUse() != nil)
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	const (
		ready = "[Success Success Success Success] usable=true"
		away  = "[Success Success UnableToDialServer UnableToValidate] usable=false"
		lost  = "[Success Success UnableToDialServer Success] usable=true"
	)
	clock := clocktesting.NewFakeClock(testNow)
	network := &dialer{}
	r := &Evaluator{Dial: network.dial, Clock: clock}
	spec := &authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: "https://x.example.com"}
	bundle, other := inline(newBundle(t)), inline(newBundle(t))
	invalid := &authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: "http://x.example.com"}
	refused := errors.New("connection refused")
	var k *known
	for _, step := range []struct {
		name    string
		wait    time.Duration
		spec    *authenticationv1alpha1.WebhookAuthenticatorSpec
		bundle  authenticators.CABundle
		network error
		want    string
		dials   int
		again   time.Duration
		same    bool // the authenticator and its connections are kept
	}{
		{"is not usable before it ever answered", 0, spec, bundle, refused, away, 1, time.Second, false},
		{"is not dialed before its time", 500 * time.Millisecond, spec, bundle, nil, away, 0, 500 * time.Millisecond, true},
		{"waits longer after each failure", time.Second, spec, bundle, refused, away, 1, 2 * time.Second, true},
		{"is usable when it answers", 2 * time.Second, spec, bundle, nil, ready, 1, authenticators.ProbeEvery, true},
		{"is left alone then", time.Minute, spec, bundle, refused, ready, 0, time.Minute, true},
		{"stays usable when it is away, and that is said", time.Minute, spec, bundle, refused, lost, 1, time.Second, true},
		{"waits half a minute at most", time.Hour, spec, bundle, refused, lost, 1, 2 * time.Second, true},
		{"is ready when it is back", time.Hour, spec, bundle, nil, ready, 1, authenticators.ProbeEvery, true},
		{"is another one with another CA bundle", 0, spec, other, refused, away, 1, time.Second, false},
		{"is another one again", 0, spec, bundle, nil, ready, 1, authenticators.ProbeEvery, false},
		{"is nothing with a bad spec", 0, invalid, bundle, nil, "[Success InvalidEndpointURLScheme UnableToValidate " +
			"UnableToValidate] usable=false", 0, authenticators.ProbeEvery, false},
	} {
		clock.Step(step.wait)
		network.err, network.calls = step.network, 0
		found := r.evaluate(t.Context(), step.spec, step.bundle, k)
		if diff := cmp.Diff(step.want, summary(found)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", step.name, diff)
		}
		if network.calls != step.dials {
			t.Errorf("%s: want %d probes, got %d", step.name, step.dials, network.calls)
		}
		if again := found.RequeueAfter.Truncate(10 * time.Millisecond); again != step.again {
			t.Errorf("%s: want the next probe after %s, got %s", step.name, step.again, again)
		}
		now, _ := found.Known.(*known)
		if same := k != nil && now != nil && k.webhook == now.webhook; same != step.same {
			t.Errorf("%s: same authenticator: want %v, got %v", step.name, step.same, same)
		}
		k = now
	}

	t.Run("does not dial where a proxy stands before it", func(t *testing.T) {
		dials := &dialer{err: refused}
		r := &Evaluator{
			Dial: dials.dial, Clock: clock,
			Proxy: func(*http.Request) (*url.URL, error) { return &url.URL{Host: "proxy"}, nil },
		}
		found := r.evaluate(t.Context(), spec, bundle, nil)
		if diff := cmp.Diff(ready, summary(found)); diff != "" || dials.calls != 0 {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if message := found.Conditions[2].Message; message != "skipped dialing connection probe because HTTPS_PROXY is "+
			"configured for use with the specified host" {
			t.Errorf("got %q", message)
		}
	})
	t.Run("waits half a minute at most after many failures", func(t *testing.T) {
		r := &Evaluator{Dial: (&dialer{err: refused}).dial, Clock: clock}
		var k *known
		for range 100 {
			k = r.evaluate(t.Context(), spec, bundle, k).Known.(*known)
			clock.Step(k.pace.Wait(clock.Now()))
		}
		found := r.evaluate(t.Context(), spec, bundle, k)
		if found.RequeueAfter.Truncate(time.Second) != authenticators.ProbeLate {
			t.Errorf("got %s", found.RequeueAfter)
		}
	})
}
