package localuser_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"
	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/localuser"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const namespace = localuser.DefaultNamespace

// startCluster starts a control plane with the manifests installed.
func startCluster(t *testing.T) *devcluster.Cluster {
	t.Helper()
	return testkit.Cluster(t, devcluster.Options{}, filepath.Join("..", "..", "deploy", "local-user-authenticator"))
}

// run starts the webhook with the permissions of its service account, and returns its address and a function that stops
// it.
func run(t *testing.T, cluster *devcluster.Cluster) (address string, stop func() error) {
	t.Helper()
	config := must.Get(cluster.ServiceAccountConfig(t.Context(), namespace, "local-user-authenticator"))(t)
	port := must.Get(cluster.ReservePort())(t)
	address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- localuser.Run(
			ctx, localuser.Options{
				RestConfig: config, Namespace: namespace, Address: address, ServingNames: []string{"localhost", "127.0.0.1"},
			},
		)
	}()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return address, stop
}

// login sends a TokenReview to the webhook as a client with the CA bundle.
func login(
	ctx context.Context, address string, bundle []byte, token string,
) (*authenticationv1beta1.TokenReviewStatus, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, errors.New("no CA bundle")
	}
	review := authenticationv1beta1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1beta1.SchemeGroupVersion.String(), Kind: "TokenReview"},
		Spec:     authenticationv1beta1.TokenReviewSpec{Token: token},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+"/authenticate",
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, */*")
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	if err := json.NewDecoder(response.Body).Decode(&review); err != nil {
		return nil, err
	}
	return &review.Status, nil
}

func hash(t *testing.T, password string) []byte {
	t.Helper()
	return must.Get(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
}

func TestOnARealAPIServer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	// Sequential, because they share the users.
	t.Run("follows users and keeps its certificate", func(t *testing.T) { followsUsers(t, cluster) })
	t.Run("serves TLS 1.3 only", func(t *testing.T) { servesTLS13Only(t, cluster) })
	t.Run("has the rights it needs and no more", func(t *testing.T) { hasNoMorePermissions(t, cluster) })
	t.Run("has pods that its namespace admits", func(t *testing.T) { hasAdmittedPods(t, cluster) })
}

func followsUsers(t *testing.T, cluster *devcluster.Cluster) {
	t.Helper()
	client := must.Get(corev1client.NewForConfig(cluster.AdminConfig()))(t)
	secrets := client.Secrets(namespace)
	address, stop := run(t, cluster)

	// Within seconds there is a certificate, and clients can use the CA in the Secret.
	var serving *corev1.Secret
	testkit.Eventually(t, 30*time.Second, func() (err error) {
		serving, err = secrets.Get(t.Context(), localuser.ServingSecretName, metav1.GetOptions{})
		return err
	})
	bundle := serving.Data["caCertificate"]
	expect := func(token string, want authenticationv1beta1.TokenReviewStatus) {
		t.Helper()
		testkit.Eventually(t, 2*time.Second, func() error {
			got, err := login(t.Context(), address, bundle, token)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(want, *got); diff != "" {
				return fmt.Errorf("answer (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	pinny := func(groups ...string) authenticationv1beta1.TokenReviewStatus {
		return authenticationv1beta1.TokenReviewStatus{
			Authenticated: true,
			User:          authenticationv1beta1.UserInfo{Username: "pinny", Groups: groups},
		}
	}
	nobody := authenticationv1beta1.TokenReviewStatus{}

	expect("pinny:password123", nobody)
	user := must.Get(secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "pinny"},
		Data:       map[string][]byte{"passwordHash": hash(t, "password123"), "groups": []byte("group-for-mtls, other")},
	}, metav1.CreateOptions{}))(t)
	expect("pinny:password123", pinny("group-for-mtls", "other"))
	user.Data = map[string][]byte{"passwordHash": hash(t, "another")}
	must.Get(secrets.Update(t.Context(), user, metav1.UpdateOptions{}))(t)
	expect("pinny:another", pinny())
	expect("pinny:password123", nobody)

	// While the API server is unavailable, users can log in; afterwards changes take effect again.
	must.Do(t, cluster.RestartAPIServer(t.Context()))
	expect("pinny:another", pinny())
	must.Do(t, secrets.Delete(t.Context(), "pinny", metav1.DeleteOptions{}))
	testkit.Eventually(t, 30*time.Second, func() error {
		got, err := login(t.Context(), address, bundle, "pinny:another")
		if err == nil && got.Authenticated {
			err = errors.New("a deleted user is still let in")
		}
		return err
	})

	// A damaged Secret is repaired with the same CA; data of other writers is kept.
	const damage = `{"metadata":{"labels":{"mine":"yes"}},"data":{"tlsPrivateKey":null,"caCertificatePrivateKey":"aGVsbG8="}}`
	must.Get(secrets.Patch(t.Context(), localuser.ServingSecretName, "application/merge-patch+json", []byte(damage),
		metav1.PatchOptions{}))(t)
	testkit.Eventually(t, 10*time.Second, func() error {
		got, err := secrets.Get(t.Context(), localuser.ServingSecretName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, err := tls.X509KeyPair(got.Data["tlsCertificateChain"], got.Data["tlsPrivateKey"]); err != nil {
			return err
		}
		if !bytes.Equal(got.Data["caCertificate"], bundle) || got.Labels["mine"] != "yes" ||
			got.Labels["app"] != "local-user-authenticator" {
			return fmt.Errorf("the CA or a label was lost: labels %v", got.Labels)
		}
		return nil
	})
	expect("pinny:another", nobody)

	// The same certificate is served after a restart.
	if err := stop(); err != nil {
		t.Fatalf("Run: %v", err)
	}
	if _, err := login(t.Context(), address, bundle, "a:b"); err == nil {
		t.Error("the port is still open after Run returned")
	}
	address, _ = run(t, cluster)
	expect("pinny:another", nobody)

	// Deleting the Secret creates a new CA.
	must.Do(t, secrets.Delete(t.Context(), localuser.ServingSecretName, metav1.DeleteOptions{}))
	testkit.Eventually(t, 10*time.Second, func() error {
		got, err := secrets.Get(t.Context(), localuser.ServingSecretName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if bytes.Equal(got.Data["caCertificate"], bundle) {
			return errors.New("still the old CA")
		}
		_, err = login(t.Context(), address, got.Data["caCertificate"], "a:b")
		return err
	})
}

func servesTLS13Only(t *testing.T, cluster *devcluster.Cluster) {
	t.Helper()
	address, _ := run(t, cluster)
	dial := func(version uint16) error {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	testkit.Eventually(t, 30*time.Second, func() error { return dial(tls.VersionTLS13) })
	if dial(tls.VersionTLS12) == nil {
		t.Error("TLS 1.2 is accepted")
	}
}

// The other tests use the permissions of the role in the manifests; this one checks what it must not permit.
func hasNoMorePermissions(t *testing.T, cluster *devcluster.Cluster) {
	t.Helper()
	config := must.Get(cluster.ServiceAccountConfig(t.Context(), namespace, "local-user-authenticator"))(t)
	client := must.Get(corev1client.NewForConfig(config))(t)
	admin := must.Get(corev1client.NewForConfig(cluster.AdminConfig()))(t)
	user := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pinny"}}
	must.Get(admin.Secrets(namespace).Create(t.Context(), user, metav1.CreateOptions{}))(t)
	refused := map[string]error{}
	_, refused["changing a user"] = client.Secrets(namespace).Update(t.Context(), user, metav1.UpdateOptions{})
	refused["deleting a user"] = client.Secrets(namespace).Delete(t.Context(), "pinny", metav1.DeleteOptions{})
	_, refused["reading Secrets elsewhere"] = client.Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	_, refused["reading ConfigMaps"] = client.ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	for what, err := range refused {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: want Forbidden, got %v", what, err)
		}
	}
}

// The namespace enforces restricted pod security, which applies to pods and not Deployments.
func hasAdmittedPods(t *testing.T, cluster *devcluster.Cluster) {
	t.Helper()
	apps := must.Get(appsv1client.NewForConfig(cluster.AdminConfig()))(t)
	core := must.Get(corev1client.NewForConfig(cluster.AdminConfig()))(t)
	deployment := must.Get(
		apps.Deployments(namespace).Get(t.Context(), "local-user-authenticator", metav1.GetOptions{}))(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "from-template", Labels: deployment.Spec.Template.Labels},
		Spec:       deployment.Spec.Template.Spec,
	}
	if _, err := core.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Errorf("the pod of the Deployment is refused: %v", err)
	}
	pod.Name = "privileged"
	pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = new(true)
	if _, err := core.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a pod that may gain privileges: want Forbidden, got %v", err)
	}
}
