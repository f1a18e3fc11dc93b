package signer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	certificatesv1client "k8s.io/client-go/kubernetes/typed/certificates/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newCA(t *testing.T, name string) *certs.CA {
	t.Helper()
	return must.Get(certs.NewCA(name, noon, 24*time.Hour))(t)
}

func TestSigner(t *testing.T) {
	t.Parallel()
	s := &Signer{Clock: clocktesting.NewFakePassiveClock(noon)}

	if _, err := s.IssueClientCertificate("ann", nil, nil, time.Minute); !errors.Is(err, ErrNotLoaded) {
		t.Fatalf("issuing without a CA: got %v, want ErrNotLoaded", err)
	}

	first := newCA(t, "first")
	if !s.Load(first, nil) {
		t.Fatal("loading the first CA changed nothing")
	}
	before := s.Current()
	if s.Load(first, nil) || s.Current() != before {
		t.Fatal("loading the same CA again made a new generation")
	}

	pair := must.Get(s.IssueClientCertificate("ann", []string{"dev", "ops"}, []string{"k=v"}, 5*time.Minute))(t)
	block, _ := pem.Decode(pair.CertPEM)
	leaf := must.Get(x509.ParseCertificate(block.Bytes))(t)
	if leaf.Subject.CommonName != "ann" || len(leaf.Subject.Organization) != 2 ||
		leaf.Subject.OrganizationalUnit[0] != "k=v" {
		t.Errorf("subject is %v", leaf.Subject)
	}
	if !leaf.NotAfter.Equal(noon.Add(5*time.Minute)) || !leaf.NotBefore.Equal(noon.Add(-certs.Backdate)) {
		t.Errorf("valid from %v to %v", leaf.NotBefore, leaf.NotAfter)
	}

	second := newCA(t, "second")
	if !s.Load(second, first.CertPEM()) {
		t.Fatal("loading the second CA changed nothing")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.Current().Bundle())
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: noon, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		t.Errorf("a certificate of the CA before is no longer accepted: %v", err)
	}
	if !bytes.HasPrefix(s.Current().Bundle(), second.CertPEM()) {
		t.Error("the signing CA does not come first")
	}

	if !s.Clear() || s.Clear() || s.Current() != nil {
		t.Error("Clear does not forget the CA exactly once")
	}
}

func TestKeysAreGivenAwayOnce(t *testing.T) {
	t.Parallel()
	keys := &keyStock{}
	keys.refill()
	known := sync.Map{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 2 * stock {
				key, err := keys.take()
				if err != nil {
					t.Error(err)
					return
				}
				if _, twice := known.LoadOrStore(key, true); twice {
					t.Error("a key was given away twice")
				}
			}
		})
	}
	group.Wait()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		keys.mu.Lock()
		enough, most := len(keys.keys), !keys.refilling
		keys.mu.Unlock()
		if enough > stock {
			t.Fatalf("there are %d keys in stock", enough)
		}
		if most && enough >= stock/2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are %d keys in stock", enough)
		}
	}
}

// restless fakes a cluster in which others change the request and watches end at once.
type restless struct {
	certificatesv1client.CertificateSigningRequestInterface

	approvals, reads int
}

func (r *restless) UpdateApproval(
	_ context.Context, name string, request *certificatesv1.CertificateSigningRequest, _ metav1.UpdateOptions,
) (*certificatesv1.CertificateSigningRequest, error) {
	if r.approvals++; r.approvals == 1 {
		return nil, apierrors.NewConflict(certificatesv1.Resource("certificatesigningrequests"), name, nil)
	}
	return request, nil
}

func (r *restless) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	ended := watch.NewFake()
	ended.Stop()
	return ended, nil
}

func (r *restless) Get(context.Context, string, metav1.GetOptions) (*certificatesv1.CertificateSigningRequest, error) {
	r.reads++
	request := &certificatesv1.CertificateSigningRequest{}
	if r.approvals == 2 {
		request.Status.Certificate = []byte("signed")
	}
	return request, nil
}

// TestARequestIsReadAgain shows that the agent reads its request again after a conflict, and when the watch ends.
func TestARequestIsReadAgain(t *testing.T) {
	t.Parallel()
	cluster := &restless{}
	r := &requester{requests: cluster}
	request, err := r.approve(t.Context(), &certificatesv1.CertificateSigningRequest{})
	if err != nil || cluster.approvals != 2 || cluster.reads != 1 || len(request.Status.Conditions) != 1 {
		t.Fatalf("approving ended with %v after %d tries and %d reads: %+v", err, cluster.approvals, cluster.reads, request)
	}
	signed, err := r.wait(t.Context(), request)
	if err != nil || string(signed) != "signed" || cluster.reads != 2 {
		t.Errorf("waiting ended with %q, %v after %d reads", signed, err, cluster.reads)
	}
}

// usurped fakes a cluster in which another client replaces the request after the agent has created it.
type usurped struct{ restless }

func (u *usurped) Get(context.Context, string, metav1.GetOptions) (*certificatesv1.CertificateSigningRequest, error) {
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "login", UID: "other"}}, nil
}

func (u *usurped) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	other := watch.NewFakeWithChanSize(1, false)
	other.Modify(&certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "login", UID: "other"},
		Status:     certificatesv1.CertificateSigningRequestStatus{Certificate: []byte("signed")},
	})
	other.Stop()
	return other, nil
}

// TestAnotherRequestOfTheSameName is neither approved nor mistaken for the original.
func TestAnotherRequestOfTheSameName(t *testing.T) {
	t.Parallel()
	made := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "login", UID: "own"}}
	cluster := &usurped{}
	r := &requester{requests: cluster}
	if _, err := r.approve(t.Context(), made.DeepCopy()); !errors.Is(err, errReplaced) || cluster.approvals != 1 {
		t.Errorf("approving ended with %v after %d tries", err, cluster.approvals)
	}
	if signed, err := r.wait(t.Context(), made); !errors.Is(err, errReplaced) || signed != nil {
		t.Errorf("waiting ended with %q, %v", signed, err)
	}
}

func TestCheckIssued(t *testing.T) {
	t.Parallel()
	s := &Signer{Clock: clocktesting.NewFakePassiveClock(noon)}
	s.Load(newCA(t, "ca"), nil)
	pair := must.Get(s.IssueClientCertificate("ann", []string{"b", "a"}, nil, 10*time.Minute))(t)
	key := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t).PrivateKey.(*ecdsa.PrivateKey)
	ann := certs.ClientIdentity{Username: "ann", Groups: []string{"a", "b"}}
	for _, test := range []struct {
		want  string
		key   *ecdsa.PrivateKey
		ann   certs.ClientIdentity
		after time.Duration
		ttl   time.Duration
	}{
		{key: key, ann: ann},
		{want: "another key", key: must.Get(certs.NewKey())(t), ann: ann},
		{want: "another user", key: key, ann: certs.ClientIdentity{Username: "ann", Groups: []string{"a"}}},
		{want: "already expired", key: key, ann: ann, after: time.Hour},
		{want: "ignores expirationSeconds", key: key, ann: ann, ttl: time.Minute},
	} {
		ttl := cmp.Or(test.ttl, 10*time.Minute)
		_, err := keyPair(pair.CertPEM, test.key, test.ann, noon.Add(test.after), ttl)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("want an error with %q, got %v", test.want, err)
		}
	}
	if _, err := keyPair([]byte("x"), key, ann, noon, time.Minute); err == nil {
		t.Error("it takes anything for a certificate")
	}
}
