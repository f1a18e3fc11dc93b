package signer_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

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
				if pair, err := c.IssueClientCertificate(
					t.Context(),
					certs.ClientIdentity{Username: name},
					time.Minute,
				); err == nil {
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
