package concierge_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationv1client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/concierge"
	"github.com/pinniped-toolkit/pinniped/internal/controller/apiservice"
	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
	"github.com/pinniped-toolkit/pinniped/internal/controller/webhookauthenticator"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/informer"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

const (
	namespace   = "pinniped-concierge"
	loginPath   = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests"
	whoAmIPath  = "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests"
	servingCert = "pinniped-concierge-api-tls-serving-certificate"
)

// agent is the part of the agent that serves the aggregated APIs, as the service account of the manifests.
type agent struct {
	cluster *devcluster.Cluster
	admin   client.Client
	address string
	signer  *certs.CA
	port    *listener.Port
	ready   atomic.Pointer[error]
	older   atomic.Bool // the API server does not serve admission policies
	log     *testkit.Buffer
	stop    func() error
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, apiregistrationv1.AddToScheme} {
		must.Do(t, add(scheme))
	}
	apis.AddToScheme(scheme, apis.DefaultGroupSuffix)
	return scheme
}

func startCluster(t *testing.T) *devcluster.Cluster {
	t.Helper()
	return testkit.Cluster(t, devcluster.Options{}, filepath.Join("..", "..", "deploy", "concierge"))
}

func startAgent(t *testing.T, cluster *devcluster.Cluster) *agent {
	t.Helper()
	account := must.Get(cluster.ServiceAccountConfig(t.Context(), namespace, "pinniped-concierge"))(t)
	a := &agent{
		cluster: cluster,
		port:    listener.New(flowcontrol.New(flowcontrol.APILimitsFor(flowcontrol.DefaultMemory, 2))),
		log:     &testkit.Buffer{},
		admin:   must.Get(client.New(cluster.AdminConfig(), client.Options{Scheme: newScheme(t)}))(t),
		signer:  must.Get(certs.NewCA("signer", time.Now(), time.Hour))(t),
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), newTestLogger(a.log)))
	t.Cleanup(cancel)

	a.stop = func() error { cancel(); return nil }
	certificate, cache := a.startControllers(ctx, t, account)
	listener := must.Get((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))(t)
	a.address = listener.Addr().String()
	issuer := &signer.Signer{}
	issuer.Load(a.signer, nil)
	a.older.Store(true)
	account = rest.CopyConfig(account)
	account.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if a.older.Load() && request.URL.Path == "/apis/admissionregistration.k8s.io/v1" {
				return olderAdmission(request), nil
			}
			return next.RoundTrip(request)
		})
	})
	options := concierge.Options{
		Listener: listener, ServingCertificate: certificate, Agent: account, GroupSuffix: apis.DefaultGroupSuffix,
		Authenticator: cache, Issuer: issuer, Port: a.port,
		Ready: func() error {
			if err := a.ready.Load(); err != nil {
				return *err
			}
			return nil
		},
	}
	var server *concierge.Server
	testkit.Eventually(t, time.Minute, func() error { // new permissions may not be in effect yet
		var err error
		server, err = concierge.New(ctx, options)
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	a.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = a.stop() })

	port := listener.Addr().(*net.TCPAddr).Port
	must.Do(t, cluster.PointServiceAt(t.Context(), namespace, "pinniped-concierge-api", port))
	for _, name := range apiServices {
		must.Do(t, cluster.PointAPIServiceAt(t.Context(), name, port))
	}
	return a
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// olderAdmission is the discovery of an API server without admission policies.
func olderAdmission(request *http.Request) *http.Response {
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Content-Type", "application/json")
	_, _ = recorder.WriteString(
		`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"admissionregistration.k8s.io/v1",
		"resources":[{"name":"mutatingwebhookconfigurations"},{"name":"validatingwebhookconfigurations"}]}`,
	)
	response := recorder.Result()
	response.Request = request
	return response
}

var apiServices = []string{"v1alpha1.login.concierge.pinniped.dev", "v1alpha1.identity.concierge.pinniped.dev"}

func (a *agent) startControllers(
	ctx context.Context, t *testing.T, account *rest.Config,
) (*apiservice.Certificate, *authenticator.Cache) {
	t.Helper()
	manager := must.Get(ctrl.NewManager(account, ctrl.Options{
		Scheme: newScheme(t), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}))(t)
	core := must.Get(corev1client.NewForConfig(account))(t)
	registration := must.Get(apiregistrationv1client.NewForConfig(account))(t)
	waker := func() (func(types.NamespacedName), <-chan event.GenericEvent) {
		wake := make(chan event.GenericEvent, 1)
		return func(types.NamespacedName) {
			select {
			case wake <- event.GenericEvent{Object: &corev1.Secret{}}:
			default:
			}
		}, wake
	}
	leads := func() bool { return true }

	certificate := &apiservice.Certificate{}
	changed, wake := waker()
	must.Do(t, (&apiservice.Reconciler{
		Client: manager.GetClient(), Live: manager.GetAPIReader(), SecretWriter: core.Secrets(namespace),
		Secrets:     informer.New(ctx, core.RESTClient(), "secrets", &corev1.Secret{}, changed),
		APIServices: informer.New(ctx, registration.RESTClient(), "apiservices", &apiregistrationv1.APIService{}, changed),
		IsLeader:    leads, Wake: wake, Certificate: certificate,
		Namespace: namespace, Secret: servingCert, Service: "pinniped-concierge-api", APIServiceNames: apiServices,
		Labels: map[string]string{"app": "pinniped-concierge"}, Clock: clock.RealClock{},
	}).SetupWithManager(manager))

	cache := authenticator.NewCache("authentication.concierge.pinniped.dev")
	changed, wake = waker()
	webhooks := &webhookauthenticator.Evaluator{Dial: webhookauthenticator.Dial, Clock: clock.RealClock{}}
	must.Do(t, (&authenticators.Reconciler{
		Kind: webhooks.Kind(), Client: manager.GetClient(),
		Secrets:    informer.New(ctx, core.RESTClient(), "secrets", &corev1.Secret{}, changed),
		ConfigMaps: informer.New(ctx, core.RESTClient(), "configmaps", &corev1.ConfigMap{}, changed),
		Cache:      cache, IsLeader: leads, Wake: wake, Namespace: namespace, Clock: clock.RealClock{},
	}).SetupWithManager(manager))
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	t.Cleanup(func() {
		_ = a.stop()
		if err := <-ended; err != nil {
			t.Errorf("the controllers ended with: %v", err)
		}
	})
	return certificate, cache
}

// newWebhook starts a TokenReview webhook that identifies users by their tokens.
func newWebhook(t *testing.T) (endpoint string, bundle []byte) {
	t.Helper()
	users := map[string]authenticationv1beta1.UserInfo{
		"good-token": {
			Username: "pinny", Groups: []string{"b-group", "a-group"},
			Extra: map[string]authenticationv1beta1.ExtraValue{"example.com/x": {"2", "1"}},
		},
		"master-token": {Username: "pinny", Groups: []string{"system:masters"}},
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1beta1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		user, known := users[review.Spec.Token]
		review.Spec.Token = ""
		review.Status = authenticationv1beta1.TokenReviewStatus{Authenticated: known, User: user}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	bundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return server.URL + "/authenticate", bundle
}

// tokenRequest is the body of a TokenCredentialRequest.
func tokenRequest(name, token, authenticator string) string {
	return fmt.Sprintf(
		`{"apiVersion":"login.concierge.pinniped.dev/v1alpha1","kind":"TokenCredentialRequest","metadata":{"name":%q},
		"spec":{"token":%q,"authenticator":{"apiGroup":"authentication.concierge.pinniped.dev","kind":"WebhookAuthenticator","name":%q}}}`,
		name, token, authenticator)
}

const whoAmIRequest = `{"apiVersion":"identity.concierge.pinniped.dev/v1alpha1","kind":"WhoAmIRequest"}`

func send(ctx context.Context, config *rest.Config, method, path, body string) (int, string, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, "", err
	}
	return sendBy(ctx, client, method, config.Host+path, body)
}

func sendBy(ctx context.Context, client *http.Client, method, url, body string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func newTestLogger(out io.Writer) klog.Logger {
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(out)))
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(content), 0o600))
}

// schema is the part of a schema that `kubectl explain` reads.
type schema struct {
	Description string             `json:"description"`
	Ref         string             `json:"$ref"`
	AllOf       []schema           `json:"allOf"`
	Properties  map[string]*schema `json:"properties"`
	Items       *schema            `json:"items"`
	Additional  json.RawMessage    `json:"additionalProperties"`
}

// testExplain checks every field of every API of pinniped, as `kubectl explain --recursive` does.
func (a *agent) testExplain(t *testing.T) {
	for group, kinds := range map[string][]string{
		"config.concierge.pinniped.dev":         {"CredentialIssuer"},
		"authentication.concierge.pinniped.dev": {"WebhookAuthenticator", "JWTAuthenticator"},
		"login.concierge.pinniped.dev":          {"TokenCredentialRequest"},
		"identity.concierge.pinniped.dev":       {"WhoAmIRequest"},
	} {
		var document struct {
			Components struct {
				Schemas map[string]*schema `json:"schemas"`
			} `json:"components"`
		}
		testkit.Eventually(t, time.Minute, func() error {
			code, response, err := send(
				t.Context(), a.cluster.AdminConfig(), http.MethodGet, "/openapi/v3/apis/"+group+"/v1alpha1", "")
			if err != nil || code != http.StatusOK {
				return fmt.Errorf("status code %d: %w", code, err)
			}
			return json.Unmarshal([]byte(response), &document)
		})
		for _, kind := range kinds {
			fields := 0
			var walk func(path string, s *schema)
			walk = func(path string, s *schema) {
				for _, ref := range append([]schema{*s}, s.AllOf...) {
					name, ok := strings.CutPrefix(ref.Ref, "#/components/schemas/")
					if ok && strings.Contains(name, "pinniped") {
						walk(path, document.Components.Schemas[name])
					}
				}
				if s.Items != nil {
					walk(path, s.Items)
				}
				for name, field := range s.Properties {
					fields++
					if strings.TrimSpace(field.Description) == "" {
						t.Errorf("%s%s.%s has no description", kind, path, name)
					}
					walk(path+"."+name, field)
				}
			}
			found := false
			for name, s := range document.Components.Schemas {
				if strings.HasSuffix(name, "."+kind) {
					found = true
					if s.Description == "" {
						t.Errorf("%s has no description", kind)
					}
					walk("", s)
				}
			}
			if !found || fields < 5 {
				t.Errorf("%s: found %t, with %d fields", kind, found, fields)
			}
		}
	}
}

// testCategories checks the results of `kubectl get pinniped` and `kubectl get pinniped-authenticators`.
func (a *agent) testCategories(t *testing.T) {
	client := must.Get(kubernetes.NewForConfig(a.cluster.AdminConfig()))(t)
	found := map[string][]string{}
	testkit.Eventually(t, time.Minute, func() error {
		_, lists, err := client.Discovery().ServerGroupsAndResources()
		if err != nil {
			return err
		}
		clear(found)
		for _, list := range lists {
			for _, resource := range list.APIResources {
				for _, category := range resource.Categories {
					if strings.HasPrefix(category, "pinniped") {
						found[category] = append(found[category], resource.Name)
					}
				}
			}
		}
		for _, names := range found {
			slices.Sort(names)
		}
		return nil
	})
	authenticators := []string{"jwtauthenticators", "webhookauthenticators"}
	want := map[string][]string{
		"pinniped": {
			"credentialissuers", "jwtauthenticators", "tokencredentialrequests", "webhookauthenticators", "whoamirequests",
		},
		"pinniped-authenticator": authenticators, "pinniped-authenticators": authenticators,
	}
	same.Values(t, "", want, found)
}
