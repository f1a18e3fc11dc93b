package signer

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	certificatesv1client "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	// minClusterLife is the shortest lifetime that a CertificateSigningRequest can request.
	minClusterLife = 10 * time.Minute
	// deleteTimeout limits how long the agent tries to delete its request.
	deleteTimeout = 5 * time.Second
	// approvalTries is how often the agent tries to approve a request that others change concurrently.
	approvalTries = 3
)

// ErrRefused is returned if the request for this user was denied or failed. It says nothing about other users.
var ErrRefused = errors.New("the request was refused")

// requester gets certificates with CertificateSigningRequests that it creates, approves and deletes.
type requester struct {
	requests certificatesv1client.CertificateSigningRequestInterface
	labels   map[string]string
}

// get returns a certificate for identity and key that is valid for about ttl. It calls done once, possibly after it
// returns, when the request has been deleted.
func (r *requester) get(
	ctx context.Context, key *ecdsa.PrivateKey, identity certs.ClientIdentity, ttl time.Duration, done func(),
) (*certs.KeyPair, error) {
	request, err := r.create(ctx, key, identity, ttl)
	if err != nil {
		done()
		return nil, err
	}
	made := request
	defer func() {
		go func() { // the login does not wait for the deletion
			defer done()
			r.remove(ctx, made)
		}()
	}()
	if request, err = r.approve(ctx, request); err != nil {
		return nil, fmt.Errorf("approving a CertificateSigningRequest for signer %s: %w",
			certificatesv1.KubeAPIServerClientSignerName, err)
	}
	signed, err := r.wait(ctx, request)
	if err != nil {
		return nil, err
	}
	return keyPair(signed, key, identity, time.Now(), ttl)
}

func (r *requester) create(
	ctx context.Context, key *ecdsa.PrivateKey, identity certs.ClientIdentity, ttl time.Duration,
) (*certificatesv1.CertificateSigningRequest, error) {
	subject := pkix.Name{
		CommonName:         identity.Username,
		Organization:       identity.Groups,
		OrganizationalUnit: identity.OrganizationalUnits,
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		return nil, fmt.Errorf("creating a CSR: %w", err)
	}
	request, err := r.requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pinniped-login-", Labels: r.labels},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:           pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName:        certificatesv1.KubeAPIServerClientSignerName,
			ExpirationSeconds: ptr.To(int32(ttl / time.Second)), //nolint:gosec // at most a day
			Usages:            []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating a CertificateSigningRequest: %w", err)
	}
	return request, nil
}

// errReplaced is returned if a request was deleted and its name belongs to another one now.
var errReplaced = errors.New("the CertificateSigningRequest was replaced by one of the same name")

// approve approves the request, and tries again on a conflict. It cannot approve another request of that name: the
// update carries the UID and resourceVersion, and the spec of a request is immutable.
func (r *requester) approve(
	ctx context.Context, request *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	for try := 1; ; try++ {
		request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
			Reason: "PinnipedLogin", Message: "an authenticator has vouched for this user",
		})
		approved, err := r.requests.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{})
		if err == nil {
			return approved, nil
		}
		if !apierrors.IsConflict(err) || try == approvalTries {
			return nil, err
		}
		if request, err = r.again(ctx, request); err != nil {
			return nil, err
		}
		if _, err := outcome(request); err != nil {
			return nil, err
		}
	}
}

// wait returns the certificate that the signer issued, in PEM.
func (r *requester) wait(ctx context.Context, request *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	signed, err := outcome(request)
	for signed == nil && err == nil {
		if request, err = r.next(ctx, request); err == nil {
			signed, err = outcome(request)
		}
	}
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("waiting for signer %s: %w", certificatesv1.KubeAPIServerClientSignerName, context.Cause(ctx))
	}
	return signed, err
}

// next returns a later version of the request.
func (r *requester) next(
	ctx context.Context, request *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	events, err := r.requests.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", request.Name).String(),
		ResourceVersion: request.ResourceVersion,
	})
	if err != nil {
		return nil, fmt.Errorf("watching a CertificateSigningRequest: %w", err)
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case event, open := <-events.ResultChan():
			changed, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
			switch {
			case open && event.Type == watch.Deleted:
				return nil, errors.New("the CertificateSigningRequest was deleted before it was signed")
			case open && ok && event.Type == watch.Modified && changed.UID == request.UID:
				return changed, nil
			case open && event.Type != watch.Error:
				continue
			}
			return r.readAgain(ctx, request)
		}
	}
}

// readAgain reads the request after its watch has ended. It first waits 100 ms, as the API server may be restarting.
func (r *requester) readAgain(
	ctx context.Context, made *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(100 * time.Millisecond):
	}
	request, err := r.again(ctx, made)
	if err != nil {
		return nil, fmt.Errorf("reading a CertificateSigningRequest: %w", err)
	}
	return request, nil
}

// again returns the current version of the request, or errReplaced if another object has its name.
func (r *requester) again(
	ctx context.Context, made *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	request, err := r.requests.Get(ctx, made.Name, metav1.GetOptions{})
	if err == nil && request.UID != made.UID {
		return nil, errReplaced
	}
	return request, err
}

// outcome returns the issued certificate, nil while there is none, or why there will be none.
func outcome(request *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	for _, condition := range request.Status.Conditions {
		if condition.Type == certificatesv1.CertificateDenied || condition.Type == certificatesv1.CertificateFailed {
			return nil, fmt.Errorf("%w: %s (%s: %s)", ErrRefused, condition.Type, condition.Reason, condition.Message)
		}
	}
	if len(request.Status.Certificate) == 0 {
		return nil, nil
	}
	return request.Status.Certificate, nil
}

// remove deletes the request, which contains the user's name and groups. If that fails, the cluster deletes it after an
// hour.
func (r *requester) remove(ctx context.Context, request *certificatesv1.CertificateSigningRequest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	_ = r.requests.Delete(ctx, request.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(request.UID))})
}

// keyPair checks the issued certificate and returns it with its key.
func keyPair(
	signed []byte, key *ecdsa.PrivateKey, identity certs.ClientIdentity, now time.Time, ttl time.Duration,
) (*certs.KeyPair, error) {
	var chain []byte
	var leaf *x509.Certificate
	for block, rest := pem.Decode(signed); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if leaf == nil {
			var err error
			if leaf, err = x509.ParseCertificate(block.Bytes); err != nil {
				return nil, fmt.Errorf("reading the certificate that the cluster's signer issued: %w", err)
			}
		}
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if leaf == nil {
		return nil, errors.New("the cluster's signer issued no certificate")
	}
	if err := checkIssued(leaf, key, identity, now, ttl); err != nil {
		return nil, fmt.Errorf("the cluster's signer issued a certificate that cannot be used: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding the private key: %w", err)
	}
	return &certs.KeyPair{
		CertPEM:   chain,
		KeyPEM:    pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		NotBefore: leaf.NotBefore,
		NotAfter:  leaf.NotAfter,
	}, nil
}

// checkIssued returns an error unless the certificate is for exactly this key and user, and its lifetime is about ttl.
func checkIssued(
	leaf *x509.Certificate, key *ecdsa.PrivateKey, identity certs.ClientIdentity, now time.Time, ttl time.Duration,
) error {
	sorted := func(names []string) []string { return slices.Sorted(slices.Values(names)) }
	switch public, ok := leaf.PublicKey.(*ecdsa.PublicKey); {
	case !ok || !public.Equal(key.Public()):
		return errors.New("it is for another key")
	case leaf.Subject.CommonName != identity.Username,
		!slices.Equal(sorted(leaf.Subject.Organization), sorted(identity.Groups)):
		return errors.New("it is for another user")
	case !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return errors.New("it is not for client authentication")
	case !leaf.NotAfter.After(now):
		return fmt.Errorf("it already expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	case leaf.NotAfter.After(now.Add(2 * ttl)):
		return fmt.Errorf("it is valid until %s, though %s was requested: the signer ignores expirationSeconds",
			leaf.NotAfter.UTC().Format(time.RFC3339), ttl)
	}
	return nil
}
