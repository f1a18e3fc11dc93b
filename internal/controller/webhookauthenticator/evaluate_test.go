package webhookauthenticator

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/informer"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
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

func startCluster(t *testing.T) *devcluster.Cluster {
	t.Helper()
	return testkit.Cluster(t, devcluster.Options{}, filepath.Join("..", "..", "..", "deploy", "crds"))
}

func startReconciler(t *testing.T, cluster *devcluster.Cluster, cache authenticators.Cache) {
	t.Helper()
	scheme := runtime.NewScheme()
	apis.AddToScheme(scheme, apis.DefaultGroupSuffix)
	manager := must.Get(ctrl.NewManager(cluster.AdminConfig(), ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}))(t)
	core := must.Get(corev1client.NewForConfig(cluster.AdminConfig()))(t)
	wake := make(chan event.GenericEvent, 1)
	changed := func(types.NamespacedName) {
		select {
		case wake <- event.GenericEvent{Object: &corev1.Secret{}}:
		default:
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	err := (&authenticators.Reconciler{
		Kind:       (&Evaluator{Dial: Dial, Clock: clock.RealClock{}}).Kind(),
		Client:     manager.GetClient(),
		Secrets:    informer.New(ctx, core.RESTClient(), "secrets", &corev1.Secret{}, changed),
		ConfigMaps: informer.New(ctx, core.RESTClient(), "configmaps", &corev1.ConfigMap{}, changed),
		Cache:      cache, IsLeader: func() bool { return true }, Wake: wake, Namespace: "default", Clock: clock.RealClock{},
	}).SetupWithManager(manager)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// inUse reports whether authenticator w is usable.
func inUse(cache *authenticator.Cache) bool {
	reference := corev1.TypedLocalObjectReference{
		APIGroup: ptr.To("authentication.concierge.pinniped.dev"),
		Kind:     Kind,
		Name:     "w",
	}
	_, _, err := cache.AuthenticateToken(context.Background(), reference, " ")
	return err == nil
}

// TestOnAPIServer tests the lifecycle of a WebhookAuthenticator.
func TestOnAPIServer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	scheme := runtime.NewScheme()
	must.Do(t, corev1.AddToScheme(scheme))
	apis.AddToScheme(scheme, apis.DefaultGroupSuffix)
	admin := must.Get(client.New(cluster.AdminConfig(), client.Options{Scheme: scheme}))(t)
	cache := authenticator.NewCache("authentication.concierge.pinniped.dev")
	startReconciler(t, cluster, cache)
	webhook := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(webhook.Close)
	good := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})

	object := &authenticationv1alpha1.WebhookAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: "w"},
		Spec: authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: webhook.URL, TLS: &authenticationv1alpha1.TLSSpec{
			CertificateAuthorityDataSource: &authenticationv1alpha1.CertificateAuthorityDataSourceSpec{
				Kind: "Secret",
				Name: "n",
				Key:  "k",
			},
		}},
	}
	expect := func(step, phase, condition, reason string, usable bool) {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		for {
			problem := func() error {
				if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
					return err
				}
				if string(object.Status.Phase) != phase || inUse(cache) != usable {
					return fmt.Errorf("phase %q, in use %v: %v", object.Status.Phase, inUse(cache), object.Status.Conditions)
				}
				for _, c := range object.Status.Conditions {
					if c.Type == condition && c.Reason == reason && c.ObservedGeneration == object.Generation {
						return nil
					}
				}
				return fmt.Errorf("no condition %s with reason %s: %v", condition, reason, object.Status.Conditions)
			}()
			if problem == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", step, problem)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	must.Do(t, admin.Create(t.Context(), object))
	expect("no Secret yet", "Error", authenticators.TypeTLS, "InvalidTLSConfig", false)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n"},
		Data:       map[string][]byte{"k": newBundle(t)},
	}
	must.Do(t, admin.Create(t.Context(), secret))
	expect("another CA", "Error", typeConnection, reasonDial, false)
	secret.Data["k"] = good
	must.Do(t, admin.Update(t.Context(), secret))
	expect("the right CA", "Ready", authenticators.TypeReady, "Success", true)
	object.Spec.Endpoint = "https://127.0.0.1:1"
	must.Do(t, admin.Update(t.Context(), object))
	expect("another endpoint, where nobody is", "Error", typeConnection, reasonDial, false)
	object.Spec.Endpoint = webhook.URL
	must.Do(t, admin.Update(t.Context(), object))
	expect("the right endpoint", "Ready", typeConnection, "Success", true)
	must.Do(t, admin.Delete(t.Context(), secret))
	expect("the Secret went", "Error", authenticators.TypeTLS, "InvalidTLSConfig", false)
	object.Spec.TLS = nil
	must.Do(t, admin.Update(t.Context(), object))
	expect("the system's roots", "Error", typeConnection, reasonDial, false)
	must.Do(t, admin.Delete(t.Context(), object))
}
