package webhookauthenticator

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
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
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

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
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(admin.Create(t.Context(), object))
	expect("no Secret yet", "Error", authenticators.TypeTLS, "InvalidTLSConfig", false)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n"},
		Data:       map[string][]byte{"k": newBundle(t)},
	}
	must(admin.Create(t.Context(), secret))
	expect("another CA", "Error", typeConnection, reasonDial, false)
	secret.Data["k"] = good
	must(admin.Update(t.Context(), secret))
	expect("the right CA", "Ready", authenticators.TypeReady, "Success", true)
	object.Spec.Endpoint = "https://127.0.0.1:1"
	must(admin.Update(t.Context(), object))
	expect("another endpoint, where nobody is", "Error", typeConnection, reasonDial, false)
	object.Spec.Endpoint = webhook.URL
	must(admin.Update(t.Context(), object))
	expect("the right endpoint", "Ready", typeConnection, "Success", true)
	must(admin.Delete(t.Context(), secret))
	expect("the Secret went", "Error", authenticators.TypeTLS, "InvalidTLSConfig", false)
	object.Spec.TLS = nil
	must(admin.Update(t.Context(), object))
	expect("the system's roots", "Error", typeConnection, reasonDial, false)
	must(admin.Delete(t.Context(), object))
}
