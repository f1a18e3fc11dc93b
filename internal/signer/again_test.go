package signer

import (
	"context"
	"errors"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	certificatesv1client "k8s.io/client-go/kubernetes/typed/certificates/v1"
)

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
