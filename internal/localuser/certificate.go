package localuser

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	// The CA outlives every installation, because clients embed it in their configuration.
	caLife          = 100 * 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour
	longestWait     = time.Hour // in case the clock changes, or the machine sleeps
)

// servingCertificate is the webhook's serving certificate: the content of the Secret, which internal/issuedcert issues
// and repairs.
type servingCertificate struct {
	name   types.NamespacedName
	policy issuedcert.Policy
	reader client.Reader
	writer issuedcert.Writer
	now    func() time.Time

	served atomic.Pointer[tls.Certificate]
	last   *issuedcert.State // of the served certificate; only for Reconcile
	ready  chan struct{}     // closed when there is a certificate to serve
}

func newServingCertificate(
	names certs.SANs, namespace string, reader client.Reader, writer issuedcert.Writer,
) *servingCertificate {
	return &servingCertificate{
		name: types.NamespacedName{Namespace: namespace, Name: ServingSecretName},
		policy: issuedcert.Policy{
			Name: "serving certificate",
			CA: &issuedcert.CAPolicy{
				CommonName: Name + " CA", Life: caLife,
				// Clients read the CA bundle from this key.
				Keys: issuedcert.Keys{Certificate: "caCertificate", PrivateKey: "caCertificatePrivateKey"},
			},
			Certificate: &issuedcert.CertificatePolicy{
				Names: names, Life: certificateLife - certs.Backdate,
				Keys: issuedcert.Keys{Certificate: "tlsCertificateChain", PrivateKey: "tlsPrivateKey"},
			},
		},
		reader: reader, writer: writer, now: time.Now, ready: make(chan struct{}),
	}
}

// servingNames returns the names of the Service in namespace, and the extra ones.
func servingNames(namespace string, extra []string) (certs.SANs, error) {
	service := Name + "." + namespace + ".svc"
	names := certs.SANs{DNSNames: []string{service, service + ".cluster.local"}}
	for _, name := range extra {
		if ip := net.ParseIP(name); ip != nil {
			names.IPAddresses = append(names.IPAddresses, ip)
			continue
		}
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return certs.SANs{}, fmt.Errorf("serving name %q is neither an IP address nor a DNS name: %s",
				name, strings.Join(problems, "; "))
		}
		names.DNSNames = append(names.DNSNames, name)
	}
	return names, nil
}

// setUp makes Reconcile run now, and whenever the Secret changes.
func (c *servingCertificate) setUp(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&corev1.Secret{}).
		WithEventFilter(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == c.name.Name })).
		WatchesRawSource(source.Func(
			func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
				queue.Add(reconcile.Request{NamespacedName: c.name})
				return nil
			})).
		WithOptions(controller.Options{SkipNameValidation: new(true)}).
		Complete(c)
}

// get returns the certificate for a new connection.
func (c *servingCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := c.served.Load(); pair != nil {
		return pair, nil
	}
	return nil, errors.New("there is no serving certificate yet")
}

// Reconcile repairs the Secret if needed, serves its certificate, and runs again when the certificate is due for
// renewal. On an error, the current certificate stays in service.
func (c *servingCertificate) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	log := ctrl.LoggerFrom(ctx)
	secret := &corev1.Secret{}
	if err := c.reader.Get(ctx, c.name, secret); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reading the serving certificate: %w", err)
	} else if err != nil {
		secret = nil
	}
	state := issuedcert.Inspect(c.policy, secret, c.now())
	if verdict := state.Verdict(); verdict != nil {
		repaired, err := state.Repair(verdict, c.last)
		if err != nil {
			return reconcile.Result{}, err
		}
		if _, err := issuedcert.Write(ctx, c.writer, issuedcert.Target{
			Name: c.name, Type: corev1.SecretTypeOpaque, Labels: map[string]string{"app": Name}, FieldManager: Name,
		}, repaired.Data(), secret); issuedcert.ChangedMeanwhile(err) { // by another replica; its write causes an event
			return reconcile.Result{RequeueAfter: time.Second}, nil
		} else if err != nil {
			return reconcile.Result{}, fmt.Errorf("writing the serving certificate: %w", err)
		}
		log.Info("Replaced serving certificate", "part", verdict.Part, "reason", verdict.Reason,
			"message", verdict.Message, "newCA", !repaired.SameCA(state) && !repaired.SameCA(c.last))
		state = repaired
	}
	c.last = state
	before := c.served.Swap(state.Certificate)
	if before == nil {
		close(c.ready)
	}
	if before == nil || !before.Leaf.Equal(state.Certificate.Leaf) {
		log.Info("Serving certificate changed", "notAfter", state.Certificate.Leaf.NotAfter, "sans", state.Names())
	}
	return reconcile.Result{RequeueAfter: min(max(state.Due().Sub(c.now()), time.Second), longestWait)}, nil
}
