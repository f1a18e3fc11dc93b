package credentialissuer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/informer"
	"github.com/pinniped-toolkit/pinniped/internal/replicas"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// switchboard fakes the impersonation proxy: it records whether it should run.
type switchboard struct {
	mu      sync.Mutex
	on      bool
	failure error
}

func (s *switchboard) Start(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = s.failure == nil
	return s.failure
}

func (s *switchboard) Stop(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = false
	return nil
}

func (s *switchboard) Serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

func (s *switchboard) Ready() error {
	if !s.Serving() {
		return errors.New("the switch is off")
	}
	return nil
}

// fail stops it and makes every start fail with err, until err is nil.
func (s *switchboard) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure, s.on = err, s.on && err == nil
}

var testNames = Names{
	CredentialIssuer: "config", LoadBalancerService: "lb", ClusterIPService: "ip",
	TLSSecret: "generated-tls", CASecret: "generated-ca", SignerSecret: "signer", LastKnownGoodSecret: "last-known-good",
	RevisionsConfigMap: "handed-out",
}

// replica is a Reconciler with a real API server.
type replica struct {
	*Reconciler
	live    client.Client
	proxy   *switchboard
	leading *atomic.Bool
	wake    chan event.GenericEvent
	events  *record.FakeRecorder
}

func startReplica(t *testing.T, cluster *devcluster.Cluster, namespace string, leading bool) *replica {
	t.Helper()
	return startNamedReplica(t, cluster, namespace, fmt.Sprintf("leader-%v", leading), leading)
}

func startNamedReplica(t *testing.T, cluster *devcluster.Cluster, namespace, name string, leading bool) *replica {
	t.Helper()
	return startReplicaWith(t, cluster, namespace, name, leading, func(*Reconciler) {})
}

// startReplicaWith starts a replica after change has modified it.
func startReplicaWith(
	t *testing.T, cluster *devcluster.Cluster, namespace, name string, leading bool, change func(*Reconciler),
) *replica {
	t.Helper()
	scheme := runtime.NewScheme()
	must.Do(t, corev1.AddToScheme(scheme))
	apis.AddToScheme(scheme, apis.DefaultGroupSuffix)
	manager := must.Get(ctrl.NewManager(cluster.AdminConfig(), ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}))(t)
	core := must.Get(corev1client.NewForConfig(cluster.AdminConfig()))(t)
	leases := must.Get(coordinationv1client.NewForConfig(cluster.AdminConfig()))(t)
	live := must.Get(client.New(cluster.AdminConfig(), client.Options{Scheme: scheme}))(t)
	r := &replica{live: live, proxy: &switchboard{}, leading: &atomic.Bool{}, wake: make(chan event.GenericEvent, 1)}
	r.leading.Store(leading)
	changed := func(types.NamespacedName) { r.notify() }
	r.events = record.NewFakeRecorder(1000)
	ctx, cancel := context.WithCancel(context.Background())
	board := replicas.New(replicas.Options{
		Leases: leases.Leases(namespace), Group: "agent", Name: name,
		IsLeader: r.leading.Load, Changed: r.notify, Clock: clock.RealClock{},
	})
	group := apis.GroupsFor(apis.DefaultGroupSuffix).Config
	restConfig := rest.CopyConfig(cluster.AdminConfig())
	restConfig.GroupVersion, restConfig.APIPath = &group, "/apis"
	restConfig.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	issuers := must.Get(rest.RESTClientFor(restConfig))(t)
	r.Reconciler = &Reconciler{
		Client: manager.GetClient(), Live: manager.GetAPIReader(), SecretWriter: core.Secrets(namespace),
		Issuers:    informer.New(t.Context(), issuers, "credentialissuers", &configv1alpha1.CredentialIssuer{}, changed),
		Secrets:    informer.New(t.Context(), core.RESTClient(), "secrets", &corev1.Secret{}, changed),
		Services:   informer.New(t.Context(), core.RESTClient(), "services", &corev1.Service{}, changed),
		ConfigMaps: informer.New(t.Context(), core.RESTClient(), "configmaps", &corev1.ConfigMap{}, changed),

		ClusterTrustBundles: noTrustBundles{},
		Permissions: delegation.NewPoller(t.Context(), delegation.PollerOptions{
			Client: core.RESTClient(), Namespace: namespace, Changed: changed, Clock: clock.RealClock{},
			Revoke: func(secret types.NamespacedName) { r.Holder.Revoke(secret) },
		}),
		Replicas: board, Events: r.events,
		Holder: &serving.Holder{}, Signer: &signer.Signer{}, Proxy: r.proxy,
		IsLeader: r.leading.Load, Wake: r.wake,
		Names: testNames, Namespace: namespace, Labels: map[string]string{"app": "x"}, AppLabel: "x", ProxyPort: 8444,
		Clock: clock.RealClock{}, RevisionRetention: serving.DefaultRetention,
	}
	r.Usage = &Usage{Clock: clock.RealClock{}, Changed: r.notify}
	change(r.Reconciler)
	must.Do(t, r.SetupWithManager(manager))
	ended := make(chan error, 1)
	left := make(chan struct{})
	go func() { ended <- manager.Start(ctx) }()
	go func() { defer close(left); board.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-left
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	})
	return r
}

// noTrustBundles fakes a cluster without ClusterTrustBundles.
type noTrustBundles struct{}

func (noTrustBundles) TrustBundle(context.Context, string) (*string, error) { return nil, nil }
func (noTrustBundles) ForgetTrustBundles(string)                            {}

func (r *replica) notify() {
	select {
	case r.wake <- event.GenericEvent{Object: &configv1alpha1.CredentialIssuer{}}:
	default:
	}
}

// strategy returns the proxy's strategy in the status.
func (r *replica) strategy(ctx context.Context) (configv1alpha1.CredentialIssuerStrategy, error) {
	var issuer configv1alpha1.CredentialIssuer
	if err := r.live.Get(ctx, types.NamespacedName{Name: testNames.CredentialIssuer}, &issuer); err != nil {
		return configv1alpha1.CredentialIssuerStrategy{}, err
	}
	if len(issuer.Status.Strategies) != 2 ||
		issuer.Status.Strategies[0].Type != configv1alpha1.StrategyKubeClusterSigningCertificate {
		return configv1alpha1.CredentialIssuerStrategy{}, fmt.Errorf("the strategies are %+v", issuer.Status.Strategies)
	}
	return issuer.Status.Strategies[1], nil
}

// waitFor waits until the status has this reason and its message contains this text.
func (r *replica) waitFor(
	t *testing.T, reason configv1alpha1.StrategyReason, text string,
) configv1alpha1.CredentialIssuerStrategy {
	t.Helper()
	var last configv1alpha1.CredentialIssuerStrategy
	testkit.Eventually(t, waitLimit, func() error {
		var err error
		if last, err = r.strategy(t.Context()); err != nil {
			return err
		}
		if last.Reason != reason || !strings.Contains(last.Message, text) {
			return fmt.Errorf("the status is %s: %s", last.Reason, last.Message)
		}
		return nil
	})
	return last
}

// waitForCodes is waitFor, and checks the codes of the findings, errors first.
func (r *replica) waitForCodes(
	t *testing.T, reason configv1alpha1.StrategyReason, text string, codes ...string,
) configv1alpha1.CredentialIssuerStrategy {
	t.Helper()
	var strategy configv1alpha1.CredentialIssuerStrategy
	testkit.Eventually(t, waitLimit, func() error { // the text may start like the previous one
		strategy = r.waitFor(t, reason, text)
		var got []string
		for _, finding := range strategy.Findings {
			got = append(got, finding.Code)
		}
		if diff := cmp.Diff(codes, got); diff != "" {
			return fmt.Errorf("codes of findings with %s (-want +got):\n%s", strategy.Message, diff)
		}
		return nil
	})
	return strategy
}

// waitForServed waits until the status has this certificate (any if sha256 is empty) and number of replicas.
func (r *replica) waitForServed(
	t *testing.T, sha256 string, replicas, inService int32,
) *configv1alpha1.ServingCertificateStatus {
	t.Helper()
	var last *configv1alpha1.ServingCertificateStatus
	r.eventually(t, func(issuer *configv1alpha1.CredentialIssuer) error {
		last = issuer.Status.ServingCertificate
		if last == nil || sha256 != "" && last.SHA256 != sha256 || last.Replicas != replicas ||
			last.ServingReplicas != inService {
			return fmt.Errorf("the status says %+v", last)
		}
		return nil
	})
	return last
}

// expectEvents checks the events so far: one for each transition.
func (r *replica) expectEvents(t *testing.T) {
	t.Helper()
	seen := map[string]int{}
	for len(r.events.Events) > 0 {
		seen[<-r.events.Events]++
	}
	for _, want := range []string{
		"Normal Disabled " + messageAutoOff,
		"Warning Pending " + serving.ErrPending.Error(),
		`Warning SecretNotFound SecretNotFound: spec.impersonationProxy.tls.secretName: Secret "default/external"`,
		"Warning NameNotCovered NameNotCovered: ",
		"Normal Listening " + messageListening,
		`Normal ServingCertificateChanged the proxy serves the certificate in Secret "external" (SHA-256 `,
		`Normal ServingCertificateChanged the proxy serves the certificate in Secret "generated-tls" (SHA-256 `,
		`Warning OldClientsBreak OldClientsBreak: `,
	} {
		times := 0
		for event, count := range seen {
			if strings.HasPrefix(event, want) {
				times += count
			}
		}
		if times == 0 || strings.HasPrefix(want, "Warning SecretNotFound") && times != 1 ||
			strings.HasPrefix(want, "Warning NameNotCovered") && times != 1 {
			t.Errorf("event %q came %d times; all: %q", want, times, slices.Collect(maps.Keys(seen)))
		}
	}
}

func (r *replica) configure(t *testing.T, change func(*configv1alpha1.ImpersonationProxySpec)) {
	t.Helper()
	r.eventually(t, func(issuer *configv1alpha1.CredentialIssuer) error {
		change(issuer.Spec.ImpersonationProxy)
		return r.live.Update(t.Context(), issuer)
	})
}

func (r *replica) secret(t *testing.T, name string) (*corev1.Secret, bool) {
	t.Helper()
	var secret corev1.Secret
	err := r.live.Get(t.Context(), types.NamespacedName{Namespace: r.Namespace, Name: name}, &secret)
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return &secret, err == nil
}

func (r *replica) putSecret(t *testing.T, name string, pair *certs.KeyPair, bundle []byte) {
	t.Helper()
	secret, found := r.secret(t, name)
	secret.Namespace, secret.Name, secret.Type = r.Namespace, name, corev1.SecretTypeTLS
	secret.Data = map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": bundle}
	var err error
	if found {
		err = r.live.Update(t.Context(), secret)
	} else {
		err = r.live.Create(t.Context(), secret)
	}
	must.Do(t, err)
}

// waitLimit limits every wait.
const waitLimit = 15 * time.Second

func startCluster(t *testing.T) *devcluster.Cluster {
	t.Helper()
	return startClusterWith(t, devcluster.Options{})
}

func startClusterWith(t *testing.T, options devcluster.Options) *devcluster.Cluster {
	t.Helper()
	return testkit.Cluster(t, options, filepath.Join("..", "..", "..", "deploy", "crds"))
}

// enabled is the spec of a proxy at proxy.example.com without a Service.
func enabled() spec {
	return spec{Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: "proxy.example.com"}
}

// fromSecret is enabled with the certificate in a Secret.
func fromSecret(name string) spec {
	proxy := enabled()
	proxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: name}
	return proxy
}

// issue returns a certificate that is valid now.
func issue(t *testing.T, ca *certs.CA, names ...string) *certs.KeyPair {
	t.Helper()
	return must.Get(ca.IssueServing(certs.SANs{DNSNames: names}, time.Now(), 20*time.Hour))(t)
}

// publishes reports whether clients get these CAs.
func publishes(strategy configv1alpha1.CredentialIssuerStrategy, bundle []byte) bool {
	return strategy.Frontend != nil &&
		strategy.Frontend.ImpersonationProxyInfo.CertificateAuthorityData == base64.StdEncoding.EncodeToString(bundle)
}

// eventually polls check with the CredentialIssuer.
func (r *replica) eventually(t *testing.T, check func(*configv1alpha1.CredentialIssuer) error) {
	t.Helper()
	testkit.Eventually(t, waitLimit, func() error {
		issuer, err := r.theIssuer(t)
		if err != nil {
			return err
		}
		return check(issuer)
	})
}

// waitForSecret waits until a Secret is there, or is gone.
func (r *replica) waitForSecret(t *testing.T, name string, want bool) {
	t.Helper()
	testkit.Eventually(t, waitLimit, func() error {
		if _, there := r.secret(t, name); there != want {
			return fmt.Errorf("Secret %q is there: %v", name, there)
		}
		return nil
	})
}

// waitForCertificate waits until the replica is ready with this certificate.
func (r *replica) waitForCertificate(t *testing.T, sha256 string) {
	t.Helper()
	testkit.Eventually(t, waitLimit, func() error {
		if current := r.Holder.Current(); current == nil || current.SHA256() != sha256 || !r.proxy.Serving() {
			return fmt.Errorf("it serves %+v", current)
		}
		return r.Ready()
	})
}

// TestReconciler tests the lifecycle of an installation on a real API server.
func TestReconciler(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	const namespace = "default"
	leader := startReplica(t, cluster, namespace, true)
	follower := startReplica(t, cluster, namespace, false)
	if leader.Ready() == nil {
		t.Error("it is ready before it has read anything")
	}

	leader.create(t, spec{Mode: "auto", Service: svc{Type: "LoadBalancer"}})
	leader.waitForCodes(t, "ErrorDuringSetup", "no nodes found", "NodesUnreadable")

	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}},
	}
	must.Do(t, leader.live.Create(t.Context(), node))
	leader.waitForCodes(t, "Disabled", messageAutoOff, "DisabledByNodes")
	if err := leader.Ready(); err != nil {
		t.Errorf("it is not ready although the proxy is off: %v", err)
	}

	// A load balancer without an address yet.
	leader.configure(t, func(s *spec) {
		s.Mode = "enabled"
		s.Service.Annotations = map[string]string{"a": "1", "b": "2"}
	})
	leader.waitForCodes(t, "Pending", serving.ErrPending.Error(), "ServiceAddressPending")
	if leader.proxy.Serving() || leader.Ready() != nil {
		t.Errorf("serving %v, ready %v", leader.proxy.Serving(), leader.Ready())
	}

	// It gets one: a certificate is generated for it.
	leader.changeService(t, "lb", func(service *corev1.Service) {
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}
	}, func(service *corev1.Service) error { return leader.live.Status().Update(t.Context(), service) })
	generated := leader.waitForCodes(t, "Listening", messageListening)
	if got := generated.Frontend.ImpersonationProxyInfo.Endpoint; got != "https://192.0.2.7" {
		t.Errorf("the endpoint is %s", got)
	}
	if !leader.proxy.Serving() {
		t.Error("the leader's proxy was not started")
	}
	leader.use(t, "")
	testkit.Eventually(t, waitLimit, func() error {
		if current := follower.Holder.Current(); current == nil || current.SHA256() != leader.Holder.Current().SHA256() {
			return errors.New("the follower does not serve what the leader serves")
		}
		return follower.Ready()
	})

	// Annotations of others stay; obsolete ones of the agent are removed.
	leader.changeService(t, "lb", func(service *corev1.Service) { service.Annotations["other"] = "x" },
		func(service *corev1.Service) error { return leader.live.Update(t.Context(), service) })
	leader.configure(t, func(s *spec) { s.Service.Annotations = map[string]string{"b": "3"} })
	testkit.Eventually(t, waitLimit, func() error {
		service, err := leader.service(t, "lb")
		if err != nil {
			return err
		}
		want := map[string]string{
			"b": "3", "other": "x",
			"credentialissuer.pinniped.dev/annotation-keys": `["b"]`, "credentialissuer.pinniped.dev/label-keys": `["app"]`,
		}
		if diff := cmp.Diff(want, service.Annotations); diff != "" {
			return fmt.Errorf("annotations (-want +got):\n%s", diff)
		}
		return nil
	})

	// An external endpoint: a certificate for it, and another Service.
	leader.configure(t, func(s *spec) {
		s.ExternalEndpoint, s.Service = "proxy.example.com:8443", svc{Type: "ClusterIP"}
	})
	testkit.Eventually(t, waitLimit, func() error {
		current := leader.Holder.Current()
		if current == nil || !slices.Equal(current.Certificate.Leaf.DNSNames, []string{"proxy.example.com"}) {
			return errors.New("no certificate for the new name")
		}
		if _, err := leader.service(t, "lb"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the load balancer is still there: %w", err)
		}
		_, err := leader.service(t, "ip")
		return err
	})
	oldCA := leader.Holder.Current().Bundle
	served := leader.waitForServed(t, leader.Holder.Current().SHA256(), 2, 2)
	if served.Source != configv1alpha1.ServingCertificateGenerated || served.SecretName != testNames.TLSSecret ||
		!slices.Equal(served.DNSNames, []string{"proxy.example.com"}) || len(served.OtherReplicas) != 0 ||
		served.NotAfter.Before(&served.ServedSince) {
		t.Errorf("what is served is told as %+v", served)
	}

	// An external certificate: missing, incomplete, invalid, then valid.
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	good := issue(t, pki, "proxy.example.com")
	leader.configure(t, func(s *spec) {
		s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external", Verification: "Enforce"}
	})
	pending := leader.waitForCodes(t, "Pending", "SecretNotFound", "SecretNotFound", "LastKnownGoodCertificateServed")
	if !publishes(pending, oldCA) {
		t.Errorf("what is still being served is not told: %+v", pending.Frontend)
	}
	leader.putSecret(t, "external", issue(t, pki, "elsewhere.example.com"), pki.CertPEM())
	leader.waitForCodes(t, "ErrorDuringSetup", "NameNotCovered", "NameNotCovered", "LastKnownGoodCertificateServed")
	if leader.Holder.Current().Source != serving.SourceGenerated {
		t.Fatal("a bad certificate replaced a good one")
	}
	if _, there := leader.secret(t, testNames.TLSSecret); !there {
		t.Fatal("the generated Secret was removed before the external certificate was served")
	}
	got := leader.waitForServed(t, served.SHA256, 2, 2)
	if got.SecretName != testNames.TLSSecret || !got.ServedSince.Equal(&served.ServedSince) {
		t.Errorf("the last known good one is told as %+v", got)
	}
	leader.putSecret(t, "external", good, pki.CertPEM())
	if !publishes(leader.waitFor(t, "Listening", messageListening), pki.CertPEM()) {
		t.Error("the bundle of ca.crt is not published")
	}
	testkit.Eventually(t, waitLimit, func() error {
		if _, there := leader.secret(t, testNames.TLSSecret); there {
			return errors.New("the generated serving certificate is still there")
		}
		if follower.Holder.Current().Source != serving.SourceExternal {
			return errors.New("the follower serves something else")
		}
		return nil
	})

	served = leader.waitForServed(t, leader.Holder.Current().SHA256(), 2, 2)
	if served.Source != configv1alpha1.ServingCertificateSecret || served.SecretName != "external" {
		t.Errorf("what is served is told as %+v", served)
	}

	// The follower cannot serve: the status says which replica and why.
	follower.proxy.fail(errors.New("port in use"))
	follower.notify()
	testkit.Eventually(t, waitLimit, func() error {
		served = leader.waitForServed(t, served.SHA256, 2, 1)
		const message = "starting the impersonation proxy: port in use"
		want := []configv1alpha1.OtherReplica{{Name: "leader-false", Message: message}}
		if diff := cmp.Diff(want, served.OtherReplicas); diff != "" {
			return fmt.Errorf("other replicas (-want +got):\n%s", diff)
		}
		return nil
	})
	follower.proxy.fail(nil)
	follower.notify()
	leader.waitForServed(t, served.SHA256, 2, 2)

	// No CA at all: public certificates.
	leader.configure(t, func(s *spec) { s.TLS.CATransition = configv1alpha1.CATransitionImmediate })
	leader.putSecret(t, "external", good, nil)
	testkit.Eventually(t, waitLimit, func() error {
		strategy, err := leader.strategy(t.Context())
		if err == nil &&
			(strategy.Status != "Success" || strategy.Frontend.ImpersonationProxyInfo.CertificateAuthorityData != "") {
			err = fmt.Errorf("the status is %+v", strategy)
		}
		return err
	})

	// The spec names the generated Secret: nothing may delete what is served.
	leader.putSecret(t, testNames.TLSSecret, good, pki.CertPEM())
	leader.configure(t, func(s *spec) { s.TLS.SecretName = testNames.TLSSecret })
	testkit.Eventually(t, waitLimit, func() error {
		if leader.Holder.Current().Secret.Name != testNames.TLSSecret {
			return errors.New("it is not served")
		}
		return nil
	})
	leader.waitFor(t, "Listening", messageListening)
	if _, there := leader.secret(t, testNames.TLSSecret); !there {
		t.Fatal("it deleted the Secret that it serves")
	}

	// Back to generated, with the old CA, so that old kubeconfigs work again. The user's Secret would be in the way.
	must.Do(t, leader.live.Delete(t.Context(), mustSecret(t, leader, testNames.TLSSecret)))
	leader.configure(t, func(s *spec) { s.TLS = nil })
	testkit.Eventually(t, waitLimit, func() error {
		if current := leader.Holder.Current(); current.Source != serving.SourceGenerated ||
			string(current.Bundle) != string(oldCA) {
			return fmt.Errorf("it serves the %s certificate", current.Source)
		}
		return nil
	})

	leader.expectEvents(t)

	// Another replica becomes the leader and writes.
	leader.leading.Store(false)
	follower.leading.Store(true)
	follower.notify()
	follower.configure(t, func(s *spec) { s.Mode = "disabled" })
	follower.waitForCodes(t, "Disabled", messageDisabled, "DisabledBySpec")
	if _, there := follower.secret(t, testNames.TLSSecret); !there {
		t.Error("the generated certificate is removed, and its clients are broken when the proxy is switched on again")
	}
	history := follower.history(t)
	used := &configv1alpha1.TransitionStatus{}
	for _, revision := range history.Revisions {
		if revision.HasClients() {
			used.WaitsFor = append(used.WaitsFor, revision.ID)
		}
	}
	follower.retire(t, used)
	testkit.Eventually(t, waitLimit, func() error {
		if leader.proxy.Serving() || follower.proxy.Serving() || follower.Signer.Current() != nil ||
			follower.Holder.Current() != nil {
			return errors.New("something still runs")
		}
		if _, there := follower.secret(t, testNames.TLSSecret); there {
			return errors.New("the generated serving certificate is still there")
		}
		for _, name := range []string{testNames.CASecret, testNames.SignerSecret} {
			if _, there := follower.secret(t, name); !there {
				t.Fatalf("Secret %s is gone", name)
			}
		}
		if _, err := leader.service(t, "ip"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Service is still there: %w", err)
		}
		return nil
	})
}

// TestFreshInstallWithExternalCertificate shows that only the signer is generated.
func TestFreshInstallWithExternalCertificate(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	leader := startReplica(t, cluster, "default", true)
	leader.proxy.fail(errors.New("port in use"))
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	good := issue(t, pki, "proxy.example.com")
	leader.putSecret(t, "external", good, nil)
	leader.create(t, spec{
		Mode:             "enabled",
		Service:          svc{Type: "None"},
		ExternalEndpoint: "proxy.example.com",
		TLS: &configv1alpha1.ImpersonationProxyTLSSpec{
			SecretName: "external", CertificateAuthorityData: base64.StdEncoding.EncodeToString(pki.CertPEM()),
		},
	})
	leader.waitForCodes(t, "ErrorDuringSetup", "starting the impersonation proxy: port in use", "ProxyNotStarted")
	if leader.Ready() == nil {
		t.Error("it is ready although the proxy does not listen")
	}
	leader.proxy.fail(nil)
	leader.waitFor(t, "Listening", messageListening)
	if err := leader.Ready(); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
	for _, name := range []string{testNames.CASecret, testNames.TLSSecret} {
		if _, there := leader.secret(t, name); there {
			t.Errorf("Secret %s was generated", name)
		}
	}
}

// silentServer accepts connections and does not respond until it is closed.
type silentServer struct {
	listener net.Listener
	asked    chan struct{} // a client has connected

	mu   sync.Mutex
	open []net.Conn
}

func startSilentServer(t *testing.T) *silentServer {
	t.Helper()
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	s := &silentServer{listener: listener, asked: make(chan struct{}, 1)}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open = append(s.open, connection)
			s.mu.Unlock()
			select {
			case s.asked <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(s.close)
	return s
}

func (s *silentServer) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, connection := range s.open {
		_ = connection.Close()
	}
}

// judges registers the silent server as admission webhook for a resource, with a timeout of half a minute.
func (s *silentServer) judges(t *testing.T, cluster *devcluster.Cluster, group, resource string) (end func()) {
	t.Helper()
	scheme := runtime.NewScheme()
	must.Do(t, admissionregistrationv1.AddToScheme(scheme))
	admin := must.Get(client.New(cluster.AdminConfig(), client.Options{Scheme: scheme}))(t)
	hook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "silent"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "silent.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](30),
			SideEffects:   ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To("https://" + s.listener.Addr().String() + "/"),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource},
				},
			}},
		}},
	}
	must.Do(t, admin.Create(t.Context(), hook))
	return func() {
		if err := admin.Delete(context.WithoutCancel(t.Context()), hook); err != nil {
			t.Error(err)
		}
	}
}

// TestNoCertificateWaitsForAReport renews the certificate while an admission webhook that does not respond blocks the
// status. Afterwards the status is complete.
func TestNoCertificateWaitsForAReport(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	leader := startReplica(t, cluster, "default", true)
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	renew := func() string {
		t.Helper()
		pair := issue(t, pki, "proxy.example.com")
		leader.putSecret(t, "external", pair, pki.CertPEM())
		served := leafSHA256(t, pair)
		leader.waitForCertificate(t, served) // within half of the webhook's timeout
		return served
	}
	leader.create(t, fromSecret("external"))
	leader.waitForServed(t, renew(), 1, 1)

	webhook := startSilentServer(t)
	group := apis.GroupsFor(apis.DefaultGroupSuffix).Config.Group
	answerAgain := webhook.judges(t, cluster, group, "credentialissuers/status")
	for silent := false; !silent; { // the API server needs time to load the webhook
		served := renew()
		testkit.Eventually(t, waitLimit, func() error {
			select {
			case <-webhook.asked:
				silent = true
				return nil
			default:
			}
			var issuer configv1alpha1.CredentialIssuer
			if err := leader.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, &issuer); err != nil {
				return err
			}
			if got := issuer.Status.ServingCertificate; got == nil || got.SHA256 != served {
				return fmt.Errorf("neither asked nor reported: %+v", got)
			}
			return nil
		})
	}
	renew()
	latest := renew()

	answerAgain()
	webhook.close()
	leader.waitForServed(t, latest, 1, 1)
	leader.eventually(t, func(issuer *configv1alpha1.CredentialIssuer) error {
		if issuer.Status.ObservedGeneration != issuer.Generation || issuer.Status.Objects == nil {
			return fmt.Errorf("a part of the status is missing: %+v", issuer.Status)
		}
		return nil
	})
}
