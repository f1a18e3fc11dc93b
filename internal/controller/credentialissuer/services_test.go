package credentialissuer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// create creates the CredentialIssuer.
func (r *replica) create(t *testing.T, proxy configv1alpha1.ImpersonationProxySpec) {
	t.Helper()
	must.Do(t, r.live.Create(t.Context(), &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: testNames.CredentialIssuer},
		Spec:       configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &proxy},
	}))
}

// service returns the current Service.
func (r *replica) service(t *testing.T, name string) (*corev1.Service, error) {
	t.Helper()
	var service corev1.Service
	err := r.live.Get(t.Context(), types.NamespacedName{Namespace: r.Namespace, Name: name}, &service)
	return &service, err
}

// waitForService waits until a Service is as wanted.
func (r *replica) waitForService(t *testing.T, name string, want func(*corev1.Service) bool) {
	t.Helper()
	testkit.Eventually(t, waitLimit, func() error {
		service, err := r.service(t, name)
		if err == nil && !want(service) {
			err = fmt.Errorf("the Service is %+v, %v", service.Spec, service.Annotations)
		}
		return err
	})
}

func (r *replica) changeService(
	t *testing.T, name string, change func(*corev1.Service), write func(*corev1.Service) error,
) {
	t.Helper()
	testkit.Eventually(t, waitLimit, func() error {
		service, err := r.service(t, name)
		if err != nil {
			return err
		}
		change(service)
		return write(service)
	})
}

// TestServices tests which fields of its Services the agent owns, on a real dual-stack API server.
func TestServices(t *testing.T) {
	t.Parallel()
	const ranges = "--service-cluster-ip-range=10.11.0.0/24,fd11::/112"
	cluster := startClusterWith(t, devcluster.Options{ExtraAPIServerArgs: []string{ranges}})
	r := startReplica(t, cluster, "default", true)
	ctx := t.Context()
	update := func(s *corev1.Service) error { return r.live.Update(ctx, s) }
	updateStatus := func(s *corev1.Service) error { return r.live.Status().Update(ctx, s) }

	r.create(t, spec{Mode: "enabled", Service: svc{
		Type:                     "LoadBalancer",
		LoadBalancerSourceRanges: []string{"192.0.2.0/24", "2001:db8::/32"},
		LoadBalancerClass:        "example.com/internal",
	}})
	r.waitFor(t, "Pending", serving.ErrPending.Error())
	// Other writers' fields, and addresses of both families.
	r.changeService(t, "lb", func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Labels["theirs"] = "x"
	}, update)
	r.changeService(t, "lb", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "2001:db8::7"}, {IP: "192.0.2.7"}}
	}, updateStatus)
	listening := r.waitFor(t, "Listening", messageListening)
	if got := listening.Frontend.ImpersonationProxyInfo.Endpoint; got != "https://[2001:db8::7]" {
		t.Errorf("the endpoint is %s", got)
	}
	for _, name := range []string{"2001:db8::7", "192.0.2.7"} {
		if err := r.Holder.Current().Certificate.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	before := must.Get(r.service(t, "lb"))(t)
	if ptr.Deref(before.Spec.LoadBalancerClass, "") != "example.com/internal" ||
		len(before.Spec.LoadBalancerSourceRanges) != 2 {
		t.Errorf("the Service is %+v", before.Spec)
	}

	// Source ranges are changed and removed; what others set stays.
	r.configure(t, func(s *spec) { s.Service.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} })
	r.waitForService(t, "lb", func(s *corev1.Service) bool {
		return slices.Equal(s.Spec.LoadBalancerSourceRanges, []string{"198.51.100.0/24"})
	})
	r.configure(t, func(s *spec) { s.Service.LoadBalancerSourceRanges = nil })
	r.waitForService(t, "lb", func(s *corev1.Service) bool { return len(s.Spec.LoadBalancerSourceRanges) == 0 })
	if s := must.Get(r.service(t, "lb"))(t); s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal ||
		s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || s.Labels["theirs"] != "x" {
		t.Fatalf("what others put there is gone: %+v", s.Spec)
	}

	// Another writer changes a field of the agent: it is restored.
	r.changeService(t, "lb", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "stolen"} }, update)
	r.waitForService(t, "lb", func(s *corev1.Service) bool { return s.Spec.Selector["app"] == "x" })

	// An invalid network is reported; what is served stays.
	r.configure(t, func(s *spec) { s.Service.LoadBalancerSourceRanges = []string{"198.51.100.0/33"} })
	r.waitFor(t, "ErrorDuringSetup", `invalid service.loadBalancerSourceRanges[0] "198.51.100.0/33"`)
	if r.Ready() != nil || !r.proxy.Serving() {
		t.Error("a bad network took the proxy out of service")
	}

	// The class is immutable: that is reported, the Service stays, and everything else is applied.
	r.configure(t, func(s *spec) {
		s.Service.LoadBalancerSourceRanges = []string{"203.0.113.0/24"}
		s.Service.LoadBalancerClass = "example.com/public"
	})
	r.waitFor(t, "Listening", `has loadBalancerClass "example.com/internal" instead of "example.com/public"`)
	after := must.Get(r.service(t, "lb"))(t)
	if after.UID != before.UID || !slices.Equal(after.Spec.LoadBalancerSourceRanges, []string{"203.0.113.0/24"}) {
		t.Errorf("the Service was made again, or not changed: %+v", after.Spec)
	}
	// After an administrator deletes the Service, it is recreated with the new class.
	must.Do(t, r.live.Delete(ctx, after))
	r.waitForService(t, "lb", func(s *corev1.Service) bool {
		return s.UID != before.UID && ptr.Deref(s.Spec.LoadBalancerClass, "") == "example.com/public"
	})
	// The class is removed from the spec: the Service keeps it, and that is no problem.
	r.changeService(t, "lb", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}}
	}, updateStatus)
	r.configure(t, func(s *spec) { s.Service = svc{Type: "LoadBalancer"} })
	testkit.Eventually(t, waitLimit, func() error {
		strategy, err := r.strategy(ctx)
		if err == nil &&
			(strategy.Message != messageListening || strategy.Frontend.ImpersonationProxyInfo.Endpoint != "https://lb.example.com") {
			err = fmt.Errorf("the status is %+v", strategy)
		}
		return err
	})

	// ClusterIP, dual-stack: the load balancer is deleted.
	r.configure(t, func(s *spec) { s.Service = svc{Type: "ClusterIP", IPFamilyPolicy: "RequireDualStack"} })
	testkit.Eventually(t, waitLimit, func() error {
		if _, err := r.service(t, "lb"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the load balancer is still there: %w", err)
		}
		service, err := r.service(t, "ip")
		if err != nil {
			return err
		}
		if len(service.Spec.ClusterIPs) != 2 {
			t.Fatalf("the cluster IPs are %v", service.Spec.ClusterIPs)
		}
		for _, ip := range service.Spec.ClusterIPs {
			if err := r.Holder.Current().Certificate.Leaf.VerifyHostname(ip); err != nil {
				return err
			}
		}
		return nil
	})
	r.configure(t, func(s *spec) { s.Service = svc{Type: "ClusterIP"} })
	r.waitFor(t, "Listening", messageListening)

	// None: both Services are deleted.
	r.configure(t, func(s *spec) { s.Service, s.ExternalEndpoint = svc{Type: "None"}, "[2001:db8::9]:8443" })
	testkit.Eventually(t, waitLimit, func() error {
		var services corev1.ServiceList
		if err := r.live.List(ctx, &services, client.InNamespace("default"), client.MatchingLabels{"app": "x"}); err != nil {
			return err
		}
		if len(services.Items) > 0 {
			return errors.New("a Service is still there")
		}
		strategy, err := r.strategy(ctx)
		if err == nil &&
			(strategy.Frontend == nil || strategy.Frontend.ImpersonationProxyInfo.Endpoint != "https://[2001:db8::9]:8443") {
			err = fmt.Errorf("the status is %+v", strategy)
		}
		return err
	})
}

// TestAServiceOfPinniped takes over a Service of upstream Pinniped's agent: fields that the spec does not ask for are
// removed; fields of others, the Service itself and its node port stay.
func TestAServiceOfPinniped(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	r := startReplica(t, cluster, "default", true)
	made := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: testNames.LoadBalancerService, Labels: map[string]string{"app": "x"},
			Annotations: map[string]string{
				"example.com/internal": "true", "credentialissuer.pinniped.dev/annotation-keys": `["example.com/internal"]`,
			},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "x"}, LoadBalancerIP: "192.0.2.9",
			LoadBalancerSourceRanges: []string{"192.0.2.0/24"},
			Ports: []corev1.ServicePort{
				{Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8444)},
			},
		},
	}
	must.Do(t, r.live.Create(t.Context(), made, client.FieldOwner(pinnipedManager)))
	theirs := made.DeepCopy()
	theirs.Annotations["theirs"] = "x"
	must.Do(t, r.live.Patch(t.Context(), theirs, client.MergeFrom(made), client.FieldOwner("kubectl-annotate")))
	r.create(t, spec{Mode: "enabled", Service: svc{Type: "LoadBalancer"}, ExternalEndpoint: "a.example.com"})
	gone := func() { // and what should stay is there
		t.Helper()
		r.waitForService(t, testNames.LoadBalancerService, func(after *corev1.Service) bool {
			if after.UID != made.UID || after.Annotations["theirs"] != "x" ||
				after.Spec.Ports[0].NodePort != made.Spec.Ports[0].NodePort {
				t.Fatalf("what should stay is gone: %+v", after)
			}
			return len(after.Spec.LoadBalancerSourceRanges) == 0 && after.Spec.LoadBalancerIP == "" &&
				after.Annotations["example.com/internal"] == ""
		})
	}
	gone()
	r.waitFor(t, "Listening", messageListening)

	// A pod of upstream Pinniped's agent that is still running writes all of it again.
	again := must.Get(r.service(t, testNames.LoadBalancerService))(t)
	before := again.DeepCopy()
	again.Annotations["example.com/internal"] = "true"
	again.Annotations[annotationKeys] = `["example.com/internal"]`
	again.Spec.LoadBalancerIP, again.Spec.LoadBalancerSourceRanges = "192.0.2.9", []string{"192.0.2.0/24"}
	must.Do(t, r.live.Patch(t.Context(), again, client.MergeFrom(before), client.FieldOwner(pinnipedManager)))
	gone()
	// A field is added to the spec, and removed.
	r.configure(t, func(s *spec) {
		s.Service.LoadBalancerIP, s.Service.LoadBalancerSourceRanges = "192.0.2.9", []string{"192.0.2.0/24"}
		s.Service.Annotations = map[string]string{"example.com/internal": "true"}
	})
	r.waitForService(t, testNames.LoadBalancerService, func(s *corev1.Service) bool {
		return s.Spec.LoadBalancerIP != "" && s.Annotations["example.com/internal"] != ""
	})
	r.configure(t, func(s *spec) { s.Service = svc{Type: "LoadBalancer"} })
	gone()
}

// TestServiceThatIsAsDesired shows that a Service is written, and logged, only if it differs.
func TestServiceThatIsAsDesired(t *testing.T) {
	t.Parallel()
	var applied atomic.Int32
	r := startReplicaWith(t, startCluster(t), "default", "agent", true, func(r *Reconciler) {
		r.Client = &applying{r.Client, func(object runtime.ApplyConfiguration) error {
			if _, ok := object.(*corev1ac.ServiceApplyConfiguration); ok {
				applied.Add(1)
			}
			return nil
		}}
	})
	r.create(t, spec{Mode: "enabled", ExternalEndpoint: "a.example.com", Service: svc{Type: "ClusterIP"}})
	r.waitFor(t, "Listening", messageListening)
	before := applied.Load()
	if before == 0 {
		t.Fatal("no Service was applied")
	}
	for _, name := range []string{"b.example.com", "c.example.com", "d.example.com"} {
		r.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) { s.ExternalEndpoint = name })
		testkit.Eventually(t, waitLimit, func() error {
			strategy := r.waitFor(t, "Listening", messageListening)
			if got := strategy.Frontend.ImpersonationProxyInfo.Endpoint; got != "https://"+name {
				return fmt.Errorf("the endpoint is %s", got)
			}
			return nil
		})
	}
	// One more is possible: the first may precede the watch event of the Service.
	if again := applied.Load() - before; again > 1 {
		t.Errorf("the Service was applied %d times although it was as desired", again)
	}
}

// TestDecideServices decides without a cluster.
func TestDecideServices(t *testing.T) {
	t.Parallel()
	wish := spec{Service: svc{Type: "ClusterIP"}}
	r := &Reconciler{Names: testNames, Namespace: "ns", AppLabel: "agent"}
	desired := r.desiredService(wish, nil)
	asDesired := func(change func(*corev1.Service)) *corev1.Service {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: testNames.ClusterIPService, Annotations: desired.Annotations},
			Spec: corev1.ServiceSpec{
				Type: "ClusterIP", Selector: desired.Spec.Selector,
				Ports: []corev1.ServicePort{{Port: *desired.Spec.Ports[0].Port, TargetPort: *desired.Spec.Ports[0].TargetPort}},
			},
		}
		change(service)
		return service
	}
	owned := func(service *corev1.Service) {
		service.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "pinniped"}}
	}
	const ip = "ip"
	good := ownService{service: asDesired(func(*corev1.Service) {})}
	old := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: testNames.LoadBalancerService}}
	for _, test := range []struct {
		name    string
		keep    string
		kept    ownService
		old     *corev1.Service
		applied any
		want    string
	}{
		{name: "makes the one that is missing", keep: ip, want: "apply"},
		{name: "leaves one alone that is as desired", keep: ip, applied: desired, kept: good},
		{name: "applies what nobody has applied yet", keep: ip, kept: good, want: "apply"},
		{
			name: "fixes one that somebody has changed", keep: ip, applied: desired,
			kept: ownService{service: asDesired(func(s *corev1.Service) { s.Spec.Type = "NodePort" })}, want: "apply",
		},
		{
			name: "takes it from a Deployment", keep: ip, applied: desired,
			kept: ownService{service: asDesired(owned)}, want: "release",
		},
		{name: "removes the other one", keep: ip, applied: desired, old: old, kept: good, want: "remove"},
		{
			name: "does not write one that could not be read, and removes the other one anyway",
			keep: ip, kept: ownService{err: errors.New("away")}, old: old, want: "remove",
		},
		{
			name: "removes both when there is to be none", kept: ownService{service: asDesired(owned)}, old: old,
			want: "remove remove",
		},
		{
			name: "does not remove one that is being deleted",
			old:  &corev1.Service{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &Reconciler{Names: testNames, Namespace: "ns", AppLabel: "agent", appliedService: test.applied}
			changes := r.decideServices(wish, test.keep, map[string]ownService{
				testNames.ClusterIPService: test.kept, testNames.LoadBalancerService: {service: test.old},
			})
			var got []string
			if changes.apply != nil {
				got = append(got, "apply")
			}
			if changes.release != nil {
				got = append(got, "release")
			}
			for range changes.remove {
				got = append(got, "remove")
			}
			if text := strings.Join(got, " "); text != test.want {
				t.Errorf("want %q, got %q", test.want, text)
			}
		})
	}
}

// TestOtherLabels reconfigures the labels of an agent: everything that the agent created gets them.
func TestOtherLabels(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	with := func(labels map[string]string) func(*Reconciler) {
		return func(r *Reconciler) { r.Labels = labels }
	}
	before := startReplicaWith(t, cluster, "default", "before", true, with(map[string]string{"app": "x", "old": "1"}))
	before.create(t, spec{Mode: "enabled", Service: svc{Type: "ClusterIP"}, ExternalEndpoint: "proxy.example.com"})
	before.waitFor(t, "Listening", messageListening)
	names := []string{testNames.SignerSecret, testNames.CASecret, testNames.TLSSecret}
	have := func(r *replica, want map[string]string) {
		t.Helper()
		testkit.Eventually(t, waitLimit, func() error {
			for _, name := range names {
				secret, there := r.secret(t, name)
				if !there {
					return fmt.Errorf("there is no Secret %s", name)
				}
				if diff := cmp.Diff(want, secret.Labels); diff != "" {
					return fmt.Errorf("labels of Secret %s (-want +got):\n%s", name, diff)
				}
			}
			service, err := r.service(t, testNames.ClusterIPService)
			if err != nil {
				return err
			}
			labels := map[string]string{"app": want["app"], "team": want["team"]}
			if !maps.Equal(service.Labels, labels) && want["old"] == "" {
				return fmt.Errorf("labels of the Service: %v", service.Labels)
			}
			return nil
		})
	}
	have(before, map[string]string{"app": "x", "old": "1"})
	for _, name := range names { // a label of another writer
		var secret corev1.Secret
		testkit.Eventually(t, waitLimit, func() error {
			if err := before.live.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, &secret); err != nil {
				return err
			}
			secret.Labels["backup"] = "no"
			return before.live.Update(t.Context(), &secret)
		})
	}
	before.leading.Store(false)
	after := startReplicaWith(t, cluster, "default", "after", true, with(map[string]string{"app": "y", "team": "blue"}))
	have(after, map[string]string{"app": "y", "team": "blue", "backup": "no"})
}

func TestDecideLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct {
		name string
		see  func(s *observed)
		spec spec
		want string
	}{
		{"relabels what is there", func(*observed) {}, spec{ExternalEndpoint: "proxy.example.com"}, "relabel generated-ca generated-tls signer"},
		{"leaves it to the leader", func(s *observed) { s.leads = false }, spec{ExternalEndpoint: "proxy.example.com"}, ""},
		{
			"leaves alone what an admin named", func(s *observed) { s.evaluation, s.serving = refusal("X"), w.external },
			spec{ExternalEndpoint: "proxy.example.com", TLS: &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "generated-tls"}},
			"relabel generated-ca signer",
		},
		{
			"leaves alone what it did not make", func(s *observed) { s.put(testNames.LastKnownGoodSecret, w.leaf.Data()) },
			spec{ExternalEndpoint: "proxy.example.com"},
			"relabel generated-ca generated-tls signer",
		},
		{
			"leaves alone what holds a user's content",
			func(s *observed) { s.secrets[testNames.SignerSecret].secret.Annotations = nil },
			spec{ExternalEndpoint: "proxy.example.com"},
			"relabel generated-ca generated-tls",
		},
	} {
		s := w.everything()
		s.labels = map[string]string{"team": "blue"}
		for _, read := range s.secrets {
			read.secret.Annotations = map[string]string{"credentialissuer.pinniped.dev/label-keys": ""}
		}
		test.see(&s)
		got := ""
		for _, a := range decide(desired(t, test.spec), s).actions {
			if a.step() == stepLabels {
				got = a.String()
			}
		}
		if got != test.want {
			t.Errorf("it %s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// TestOwners makes a Deployment, as upstream Pinniped does, and another object owners of the agent's objects: the
// Deployment is removed from the owners, and the other stays.
func TestOwners(t *testing.T) {
	t.Parallel()
	r := startReplicaWith(t, startCluster(t), "default", "agent", true, func(*Reconciler) {})
	r.create(t, spec{Mode: "enabled", Service: svc{Type: "ClusterIP"}, ExternalEndpoint: "proxy.example.com"})
	r.waitFor(t, "Listening", messageListening)
	deployment := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "pinniped-concierge", UID: "1"}
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "backup", UID: "2"}
	objects := map[string]client.Object{testNames.ClusterIPService: &corev1.Service{}}
	for _, name := range []string{testNames.SignerSecret, testNames.CASecret, testNames.TLSSecret} {
		objects[name] = &corev1.Secret{}
	}
	for name, object := range objects {
		testkit.Eventually(t, waitLimit, func() error {
			if err := r.live.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, object); err != nil {
				return err
			}
			object.SetOwnerReferences([]metav1.OwnerReference{deployment, other})
			return r.live.Update(t.Context(), object)
		})
	}
	for name, object := range objects {
		testkit.Eventually(t, waitLimit, func() error {
			if err := r.live.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, object); err != nil {
				return err
			}
			if diff := cmp.Diff([]metav1.OwnerReference{other}, object.GetOwnerReferences()); diff != "" {
				return fmt.Errorf("owners of %s (-want +got):\n%s", name, diff)
			}
			return nil
		})
	}
}
