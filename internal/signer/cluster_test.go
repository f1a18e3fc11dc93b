package signer_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	namespace = "pinniped-concierge"
	account   = "pinniped-concierge"
	waitLimit = 2 * time.Minute
)

// world is a control plane where the agent's service account has the permissions of deploy/clustersigner.
type world struct {
	*devcluster.Cluster
	admin kubernetes.Interface
	agent *rest.Config
}

func startWorld(t *testing.T, withSigner bool) *world {
	t.Helper()
	cluster := testkit.Cluster(t, devcluster.Options{ControllerManager: withSigner})
	admin := must.Get(kubernetes.NewForConfig(cluster.AdminConfig()))(t)
	ctx := t.Context()
	must.Get(admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
	}, metav1.CreateOptions{}))(t)
	must.Get(admin.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: account},
	}, metav1.CreateOptions{}))(t)
	agent := must.Get(cluster.ServiceAccountConfig(ctx, namespace, account))(t)
	return &world{Cluster: cluster, admin: admin, agent: agent}
}

// grant applies the Roles of the overlay.
func (w *world) grant(t *testing.T) {
	t.Helper()
	must.Do(t, w.Install(t.Context(), filepath.Join("..", "..", "deploy", "clustersigner", "rbac.yaml")))
}

// publish creates ConfigMap cluster-info with a server, as kubeadm does.
func (w *world) publish(t *testing.T, server string) {
	t.Helper()
	content, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
		"": {Server: server, CertificateAuthorityData: w.AdminConfig().CAData},
	}})
	if err != nil {
		t.Fatal(err)
	}
	maps := w.admin.CoreV1().ConfigMaps(metav1.NamespacePublic)
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": string(content)},
	}
	_, err = maps.Create(t.Context(), object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(t.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a Cluster until the end of the test.
func (w *world) start(t *testing.T, options signer.ClusterOptions) *signer.Cluster {
	t.Helper()
	options.Agent = w.agent
	c := must.Get(signer.NewCluster(options))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return c
}

// waitForState waits until the signer has been tested and Err contains problem; "" means that it works.
func waitForState(t *testing.T, c *signer.Cluster, problem string) signer.ClusterState {
	t.Helper()
	var state signer.ClusterState
	testkit.Eventually(t, waitLimit, func() error {
		state = c.State()
		switch {
		case !state.Tested:
			return signer.ErrNotTested
		case problem == "" && state.Err != nil:
			return state.Err
		case problem != "" && (state.Err == nil || !strings.Contains(state.Err.Error(), problem)):
			return fmt.Errorf("want a problem with %q, got %w", problem, state.Err)
		}
		return nil
	})
	return state
}

// requests returns the number of CertificateSigningRequests.
func (w *world) requests(t *testing.T) int {
	t.Helper()
	list := must.Get(w.admin.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{}))(t)
	return len(list.Items)
}

// whoIs returns the user that the API server authenticates by a certificate.
func (w *world) whoIs(ctx context.Context, pair *certs.KeyPair) (authenticationv1.UserInfo, error) {
	config := rest.AnonymousClientConfig(w.AdminConfig())
	config.CertData, config.KeyData = pair.CertPEM, pair.KeyPEM
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().
		Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// TestTheClustersOwnSigner gets certificates from the kube-controller-manager, with the permissions of the overlay.
func TestTheClustersOwnSigner(t *testing.T) {
	t.Parallel()
	w := startWorld(t, true)
	var changes atomic.Int32
	c := w.start(t, signer.ClusterOptions{
		Labels: map[string]string{"app": "x"}, FirstRetry: 200 * time.Millisecond,
		Changed: func() { changes.Add(1) },
	})
	ann := certs.ClientIdentity{
		Username: "ann", Groups: []string{"dev", "ops"}, OrganizationalUnits: []string{"example.com/team=blue"},
	}

	waitForState(t, c, "cannot create resource \"certificatesigningrequests\"")
	if err := c.State().Err; !strings.Contains(err.Error(), "deploy/clustersigner") {
		t.Errorf("the problem does not say what is missing: %v", err)
	}
	if _, err := c.IssueClientCertificate(t.Context(), ann, time.Minute); err == nil {
		t.Error("got a certificate without the right to ask for one")
	}

	w.grant(t)
	state := waitForState(t, c, "")
	if state.InfoErr == nil || !strings.Contains(state.InfoErr.Error(), "cluster-info") {
		t.Errorf("without the ConfigMap cluster-info, want an error about it, got %v", state.InfoErr)
	}
	w.publish(t, "https://kube.example.com:6443")
	testkit.Eventually(t, waitLimit, func() error { return c.State().InfoErr })
	if state := c.State(); state.Server != "https://kube.example.com:6443" ||
		string(state.CABundle) != string(w.AdminConfig().CAData) {
		t.Errorf("clients reach the API server at %s with %s", state.Server, state.CABundle)
	}
	if n := changes.Load(); n < 3 {
		t.Errorf("%d calls of Changed, want one for each of three", n)
	}
	if other := w.start(t, signer.ClusterOptions{Server: "https://public.example.com"}); other != nil {
		if got := waitForState(t, other, "").Server; got != "https://public.example.com" {
			t.Errorf("the configured server is not taken: %s", got)
		}
	}

	before := time.Now()
	pair := must.Get(c.IssueClientCertificate(t.Context(), ann, time.Minute))(t)
	leaf := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
	if life := pair.NotAfter.Sub(before); life < 9*time.Minute || life > 11*time.Minute ||
		!leaf.Leaf.NotAfter.Equal(pair.NotAfter) {
		t.Errorf("it works for %s, want about ten minutes, the shortest that can be asked for", life)
	}
	if diff := cmp.Diff(ann.OrganizationalUnits, leaf.Leaf.Subject.OrganizationalUnit); diff != "" {
		t.Errorf("extras (-want +got):\n%s", diff)
	}
	who := must.Get(w.whoIs(t.Context(), pair))(t)
	seen := append([]string{who.Username}, who.Groups...)
	if diff := cmp.Diff([]string{"ann", "dev", "ops", "system:authenticated"}, seen); diff != "" {
		t.Errorf("the API server sees (-want +got):\n%s", diff)
	}
	longer := must.Get(c.IssueClientCertificate(t.Context(), certs.ClientIdentity{Username: "bob"}, time.Hour))(t)
	if life := time.Until(longer.NotAfter); life < 59*time.Minute || life > 61*time.Minute {
		t.Errorf("it works for %s, want about an hour", life)
	}
	testkit.Eventually(t, waitLimit, func() error {
		if n := w.requests(t); n != 0 {
			return fmt.Errorf("%d CertificateSigningRequests are left", n)
		}
		return nil
	})

	t.Run("serves many logins at once", func(t *testing.T) { manyLogins(t, w, c) })
	t.Run("may approve for no other signer", func(t *testing.T) { w.otherSigner(t) })
	t.Run("cannot have system:masters", func(t *testing.T) {
		_, err := c.IssueClientCertificate(
			t.Context(), certs.ClientIdentity{Username: "eve", Groups: []string{"system:masters"}}, time.Minute)
		if err == nil || !strings.Contains(err.Error(), "system:masters") {
			t.Errorf("got %v", err)
		}
		if err := c.State().Err; err != nil {
			t.Errorf("one user who is refused makes the signer unusable for all: %v", err)
		}
	})
}

// manyLogins has more users log in than clusterInFlight, and counts the requests meanwhile.
func manyLogins(t *testing.T, w *world, c *signer.Cluster) { //nolint:thelper // a subtest
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := must.Get(w.admin.CertificatesV1().CertificateSigningRequests().Watch(ctx, metav1.ListOptions{}))(t)
	const logins = 24
	most := make(chan int)
	go func() {
		there, peak, gone := 0, 0, 0
		for event := range events.ResultChan() {
			if event.Type == watch.Added {
				there++
			}
			if event.Type == watch.Deleted {
				there--
				gone++
			}
			peak = max(peak, there)
			if gone == logins {
				break
			}
		}
		most <- peak
	}()
	var group sync.WaitGroup
	for i := range logins {
		group.Go(func() {
			name := fmt.Sprintf("user-%d", i)
			pair, err := c.IssueClientCertificate(ctx, certs.ClientIdentity{Username: name}, time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			if who, err := w.whoIs(ctx, pair); err != nil || who.Username != name {
				t.Errorf("the certificate of %s authenticates %q at the API server, %v", name, who.Username, err)
			}
		})
	}
	group.Wait()
	if got := <-most; got > 8 {
		t.Errorf("there were %d CertificateSigningRequests at a time, want 8 at the most", got)
	}
}

// otherSigner shows that the agent's permissions are limited to one signer: it can create requests for another, but not
// approve them.
func (w *world) otherSigner(t *testing.T) {
	t.Helper()
	agent := must.Get(kubernetes.NewForConfig(w.agent))(t)
	key := must.Get(certs.NewKey())(t)
	requests := agent.CertificatesV1().CertificateSigningRequests()
	made := must.Get(requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "kubelet"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    requestFor(t, key, "system:node:n1", "system:nodes"),
			SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
			Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
		},
	}, metav1.CreateOptions{}))(t)
	made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "x"},
	}
	if _, err := requests.UpdateApproval(t.Context(), made.Name, made, metav1.UpdateOptions{}); err == nil {
		t.Error("it may approve what a kubelet asks for")
	}
}

// TestNoSignerResponds simulates EKS: requests can be created and approved, and are never signed.
func TestNoSignerResponds(t *testing.T) {
	t.Parallel()
	w := startWorld(t, false)
	w.grant(t)
	c := w.start(t, signer.ClusterOptions{Timeout: 2 * time.Second, FirstRetry: 100 * time.Millisecond})
	waitForState(t, c, "waiting for signer kubernetes.io/kube-apiserver-client: no response within 2s")
	began := time.Now()
	if _, err := c.IssueClientCertificate(t.Context(), certs.ClientIdentity{Username: "ann"}, time.Minute); err == nil {
		t.Error("got a certificate from nowhere")
	}
	if waited := time.Since(began); waited > time.Second {
		t.Errorf("a login waited for %s for a signer that is known not to respond", waited)
	}

	// Another program denies the approved request, as a policy engine may.
	denied := w.respond(t, func(request *certificatesv1.CertificateSigningRequest) {
		request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "Policy", Message: "not here",
		})
	})
	waitForState(t, c, "the request was refused: Failed (Policy: not here)")
	denied()

	// A signer that issues for longer than requested, as before Kubernetes 1.22.
	ca := must.Get(certs.NewCA("other", time.Now(), 365*24*time.Hour))(t)
	forYears := w.sign(t, ca, 300*24*time.Hour)
	waitForState(t, c, "the signer ignores expirationSeconds")
	forYears()

	// A signer that the API server does not trust.
	foreign := w.sign(t, ca, 10*time.Minute)
	waitForState(t, c, "testing a certificate from the cluster's signer")
	foreign()
}

// TestRetest shows that a caller need not wait for the next periodic test.
func TestRetest(t *testing.T) {
	t.Parallel()
	w := startWorld(t, false)
	w.grant(t)
	w.publish(t, "https://kube.example.com:6443")
	c := w.start(t, signer.ClusterOptions{Timeout: 2 * time.Second, FirstRetry: 100 * time.Millisecond})
	agent := must.Get(kubernetes.NewForConfig(w.agent))(t)
	go signer.FollowClusterInfo(t.Context(), agent.CoreV1(), c.Retest)
	stop := w.sign(t, w.ClientCA(), 10*time.Minute)
	waitForState(t, c, "")
	w.publish(t, "https://moved.example.com:6443")
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := c.State().Server; got != "https://moved.example.com:6443" {
			return fmt.Errorf("clients get %q", got)
		}
		return nil
	})
	stop()
	c.Retest()
	testkit.Eventually(t, 20*time.Second, func() error {
		if c.State().Err == nil {
			return errors.New("the signer counts as good")
		}
		return nil
	})
}

// TestASignerThatGoesAway shows that one login that times out is enough: later ones fail at once.
func TestASignerThatGoesAway(t *testing.T) {
	t.Parallel()
	w := startWorld(t, false)
	w.grant(t)
	c := w.start(t, signer.ClusterOptions{Timeout: 2 * time.Second, FirstRetry: 100 * time.Millisecond})
	stop := w.sign(t, w.ClientCA(), 10*time.Minute)
	waitForState(t, c, "")
	ann := certs.ClientIdentity{Username: "ann"}
	must.Get(c.IssueClientCertificate(t.Context(), ann, time.Minute))(t)
	stop()
	left, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.IssueClientCertificate(left, ann, time.Minute); err == nil || c.State().Err != nil {
		t.Errorf("a client that leaves is no reason to doubt the signer: %v, %v", err, c.State().Err)
	}
	if _, err := c.IssueClientCertificate(t.Context(), ann, time.Minute); !errors.Is(err, c.State().Err) || err == nil {
		t.Errorf("got %v, while the state says %v", err, c.State().Err)
	}
	stop = w.sign(t, w.ClientCA(), 10*time.Minute)
	defer stop()
	waitForState(t, c, "")
}

// respond fakes a signer: it changes the status of each approved CertificateSigningRequest until stop is called.
func (w *world) respond(t *testing.T, change func(*certificatesv1.CertificateSigningRequest)) (stop func()) {
	t.Helper()
	requests := w.admin.CertificatesV1().CertificateSigningRequests()
	events := must.Get(requests.Watch(t.Context(), metav1.ListOptions{}))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range events.ResultChan() {
			request, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
			if !ok || event.Type == "DELETED" || len(request.Status.Conditions) != 1 || len(request.Status.Certificate) > 0 {
				continue
			}
			change(request)
			_, _ = requests.UpdateStatus(t.Context(), request, metav1.UpdateOptions{}) // it may have been deleted
		}
	}()
	return sync.OnceFunc(func() { events.Stop(); <-ended })
}

// sign fakes a signer with this CA until stop is called. The API server trusts ClientCA for client certificates.
func (w *world) sign(t *testing.T, ca *certs.CA, life time.Duration) (stop func()) {
	t.Helper()
	block, _ := pem.Decode(must.Get(ca.KeyPEM())(t))
	key := must.Get(x509.ParsePKCS8PrivateKey(block.Bytes))(t)
	return w.respond(t, func(request *certificatesv1.CertificateSigningRequest) {
		block, _ := pem.Decode(request.Spec.Request)
		asked, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Error(err)
			return
		}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			Subject: asked.Subject, SerialNumber: ca.Certificate().SerialNumber, NotBefore: time.Now().Add(-time.Minute),
			NotAfter: time.Now().Add(life), KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		}, ca.Certificate(), asked.PublicKey, key)
		if err != nil {
			t.Error(err)
		}
		request.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	})
}

// requestFor returns a certificate request in PEM.
func requestFor(t *testing.T, key *ecdsa.PrivateKey, username string, groups ...string) []byte {
	t.Helper()
	der := must.Get(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: username, Organization: groups},
	}, key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// adversary replaces the request of each user named victim-… just before the agent approves it with one for an
// administrator under the same name.
type adversary struct {
	agent    http.RoundTripper
	cluster  kubernetes.Interface
	request  []byte
	replaced atomic.Int32
	problem  atomic.Value
}

func (a *adversary) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPut && strings.HasSuffix(request.URL.Path, "/approval") {
		if err := a.replace(request, path.Base(path.Dir(request.URL.Path))); err != nil {
			a.problem.Store(err)
		}
	}
	return a.agent.RoundTrip(request)
}

func (a *adversary) replace(of *http.Request, name string) error {
	requests := a.cluster.CertificatesV1().CertificateSigningRequests()
	made, err := requests.Get(of.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	block, _ := pem.Decode(made.Spec.Request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || !strings.HasPrefix(parsed.Subject.CommonName, "victim-") {
		return err
	}
	if err := requests.Delete(of.Context(), name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	other := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: made.Spec}
	other.Spec.Request = a.request
	if _, err := requests.Create(of.Context(), other, metav1.CreateOptions{}); err != nil {
		return err
	}
	a.replaced.Add(1)
	return nil
}

// TestAReplacedRequestIsNotApproved: an adversary that can create and delete CertificateSigningRequests replaces the
// request of every login before its approval. The agent approves none of them, and the signer signs none.
func TestAReplacedRequestIsNotApproved(t *testing.T) {
	t.Parallel()
	w := startWorld(t, true)
	w.grant(t)
	key := must.Get(certs.NewKey())(t)
	eve := &adversary{cluster: w.admin, request: requestFor(t, key, "kubernetes-admin", "kubeadm:cluster-admins")}
	w.agent = rest.CopyConfig(w.agent)
	w.agent.Wrap(func(agent http.RoundTripper) http.RoundTripper {
		eve.agent = agent
		return eve
	})
	c := w.start(t, signer.ClusterOptions{FirstRetry: 200 * time.Millisecond})
	waitForState(t, c, "")

	const logins = 320
	names := make(chan string, logins)
	for i := range logins {
		names <- fmt.Sprintf("victim-%d", i)
	}
	close(names)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for name := range names {
				victim := certs.ClientIdentity{Username: name}
				if pair, err := c.IssueClientCertificate(t.Context(), victim, time.Minute); err == nil {
					t.Errorf("%s got a certificate although the request was replaced: %s", name, pair.CertPEM)
				}
			}
		})
	}
	group.Wait()
	if err := eve.problem.Load(); err != nil {
		t.Fatal(err)
	}
	if got := eve.replaced.Load(); got != logins {
		t.Errorf("%d requests were replaced, want %d", got, logins)
	}
	left := must.Get(w.admin.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{}))(t)
	for _, request := range left.Items {
		if string(request.Spec.Request) == string(eve.request) &&
			(len(request.Status.Conditions) > 0 || len(request.Status.Certificate) > 0) {
			t.Errorf("the agent approved %s, which it did not make: %+v", request.Name, request.Status.Conditions)
		}
	}
}
