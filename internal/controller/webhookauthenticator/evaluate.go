// Package webhookauthenticator evaluates WebhookAuthenticators: whether the endpoint is a valid URL, can be dialed, and
// has a certificate that verifies.
package webhookauthenticator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

// The condition types of this kind only. Each requires those before it: TLS, endpoint, connection, authenticator.
const (
	typeEndpoint   = "EndpointURLValid"
	typeConnection = "WebhookConnectionValid"
)

const (
	reasonEndpoint       = "InvalidEndpointURL"
	reasonEndpointScheme = "InvalidEndpointURLScheme"
	reasonEndpointProxy  = "InvalidEndpointCannotDetermineProxy"
	reasonDial           = "UnableToDialServer"
	reasonInstantiate    = "UnableToInstantiateWebhook"
	messageSkippedBehind = "skipped dialing connection probe because HTTPS_PROXY is configured for use with the " +
		"specified host"
	messageDialed   = "successfully dialed webhook server"
	messageEndpoint = "spec.endpoint is a valid URL"
)

// Kind is the key of these authenticators in the cache.
const Kind = authenticator.KindWebhook

// Evaluator checks whether WebhookAuthenticators can verify tokens, and returns the conditions.
type Evaluator struct {
	Proxy ProxyFunc // nil for none
	// Dial connects to a webhook with TLS; the function Dial, except in tests.
	Dial  func(ctx context.Context, address string, roots *x509.CertPool) error
	Clock clock.PassiveClock
}

// Kind returns what the shared reconciler needs to know about WebhookAuthenticators.
func (e *Evaluator) Kind() authenticators.Kind {
	typed := func(object client.Object) *authenticationv1alpha1.WebhookAuthenticator {
		return object.(*authenticationv1alpha1.WebhookAuthenticator)
	}
	return authenticators.Kind{
		Name:    Kind,
		New:     func() client.Object { return &authenticationv1alpha1.WebhookAuthenticator{} },
		NewList: func() client.ObjectList { return &authenticationv1alpha1.WebhookAuthenticatorList{} },
		TLS:     func(object client.Object) *authenticationv1alpha1.TLSSpec { return typed(object).Spec.TLS },
		Status: func(object client.Object) authenticators.Status {
			return authenticators.Status(typed(object).Status)
		},
		Evaluate: func(ctx context.Context, object client.Object, bundle authenticators.CABundle, before authenticators.Known) authenticators.Evaluation {
			k, _ := before.(*known)
			return e.evaluate(ctx, &typed(object).Spec, bundle, k)
		},
		Checking: func(object client.Object, bundle authenticators.CABundle) []metav1.Condition {
			_, _, endpoint := checkEndpoint(typed(object).Spec.Endpoint, e.Proxy)
			return []metav1.Condition{
				bundle.Condition, endpoint,
				authenticators.Checking(typeConnection), authenticators.Checking(authenticators.TypeAuthenticator),
			}
		},
	}
}

// target is what an authenticator connects to. A change of it requires a new authenticator and a probe.
type target struct {
	endpoint string
	proxied  bool
	bundle   [sha256.Size]byte
}

// known is the state of one WebhookAuthenticator between evaluations.
type known struct {
	target  target
	webhook *authenticator.Webhook
	proven  bool // a probe has succeeded, or none is possible
	problem error
	pace    authenticators.Pace
}

// InUse implements authenticators.Known.
func (k *known) InUse() authenticator.Token {
	if !k.proven {
		return nil
	}
	return k.webhook
}

// Release implements authenticators.Known.
func (k *known) Release(next authenticators.Known) {
	if following, ok := next.(*known); !ok || following.webhook != k.webhook {
		k.webhook.Close()
	}
}

// evaluate checks a spec. before is the result of the previous evaluation of the object, or nil. Only the probe uses
// the network.
func (e *Evaluator) evaluate(
	ctx context.Context,
	spec *authenticationv1alpha1.WebhookAuthenticatorSpec,
	bundle authenticators.CABundle,
	before *known,
) authenticators.Evaluation {
	endpoint, proxied, endpointCondition := checkEndpoint(spec.Endpoint, e.Proxy)
	f := authenticators.Evaluation{
		Conditions:   []metav1.Condition{bundle.Condition, endpointCondition},
		RequeueAfter: authenticators.ProbeEvery,
	}
	if !bundle.Usable() || endpoint == nil {
		f.Conditions = append(f.Conditions, authenticators.Unknown(typeConnection),
			authenticators.Unknown(authenticators.TypeAuthenticator))
		return f
	}
	roots := bundle.Pool()
	aim := target{endpoint: endpoint.String(), proxied: proxied, bundle: bundle.Sum()}
	k := before
	if k == nil || k.target != aim {
		webhook, err := authenticator.NewWebhook(
			authenticator.WebhookOptions{Endpoint: endpoint, Roots: roots, Proxy: e.Proxy},
		)
		if err != nil {
			f.Conditions = append(f.Conditions, authenticators.Unknown(typeConnection),
				authenticators.Bad(authenticators.TypeAuthenticator, reasonInstantiate, err.Error()))
			return f
		}
		k = &known{target: aim, webhook: webhook}
	}

	if k.pace.Due(e.Clock.Now()) {
		k = e.probe(ctx, endpoint, roots, *k)
	}
	f.Known = k
	f.RequeueAfter = k.pace.Wait(e.Clock.Now())
	ready := authenticators.Unknown(authenticators.TypeAuthenticator)
	if k.proven {
		ready = authenticators.Good(authenticators.TypeAuthenticator, authenticators.MessageAuthenticator)
	}
	f.Conditions = append(f.Conditions, connectionCondition(k), ready)
	return f
}

// probe dials the webhook and returns the new state. A webhook that once responded stays proven: its target is the
// same, and if it is unavailable, logins fail by themselves.
func (e *Evaluator) probe(ctx context.Context, endpoint *url.URL, roots *x509.CertPool, k known) *known {
	if !k.target.proxied {
		before := k.problem
		k.problem = e.Dial(ctx, address(endpoint), roots)
		authenticators.LogProbe(ctx, k.problem, before)
	}
	k.proven = k.proven || k.problem == nil
	k.pace = k.pace.After(k.problem == nil, e.Clock.Now())
	return &k
}

func connectionCondition(k *known) metav1.Condition {
	switch {
	case k.target.proxied:
		return authenticators.Good(typeConnection, messageSkippedBehind)
	case k.problem != nil:
		return authenticators.Bad(typeConnection, reasonDial, "cannot dial server: "+authenticators.DescribeProbe(k.problem))
	default:
		return authenticators.Good(typeConnection, messageDialed)
	}
}

// ProxyFunc returns the HTTP proxy for a request, as http.ProxyFromEnvironment does.
type ProxyFunc func(*http.Request) (*url.URL, error)

// checkEndpoint returns the URL of the endpoint and whether it is reached through a proxy. The URL is nil if the
// endpoint is invalid.
func checkEndpoint(text string, proxy ProxyFunc) (endpoint *url.URL, proxied bool, condition metav1.Condition) {
	bad := func(reason, message string) (*url.URL, bool, metav1.Condition) {
		return nil, false, authenticators.Bad(typeEndpoint, reason, message)
	}
	endpoint, err := url.Parse(text)
	switch {
	case err != nil:
		return bad(reasonEndpoint, "spec.endpoint URL is invalid: "+authenticators.DescribeURLError(err))
	case endpoint.Scheme != "https":
		return bad(reasonEndpointScheme,
			fmt.Sprintf("spec.endpoint URL %s has invalid scheme, require 'https'", endpoint.Redacted()))
	case endpoint.Hostname() == "":
		return bad(reasonEndpoint, "spec.endpoint URL is invalid: it has no host")
	}
	if proxy != nil {
		via, err := proxy(&http.Request{URL: endpoint})
		if err != nil {
			return bad(reasonEndpointProxy, "spec.endpoint URL error: unable to determine if HTTPS_PROXY applies to it")
		}
		proxied = via != nil
	}
	return endpoint, proxied, authenticators.Good(typeEndpoint, messageEndpoint)
}

// address returns HOST:PORT of an endpoint.
func address(endpoint *url.URL) string {
	return net.JoinHostPort(endpoint.Hostname(), cmp.Or(endpoint.Port(), "443"))
}

const probeTimeout = 10 * time.Second

// Dial makes a TLS connection, sends nothing, and closes it.
func Dial(ctx context.Context, address string, roots *x509.CertPool) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	config := authenticator.TLSConfig(roots)
	config.NextProtos = []string{"h2", "http/1.1"}
	connection, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	_ = connection.Close() // nothing was sent
	return nil
}
