package credentialissuer

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// observed is the input of decide: the state of the cluster and of this replica at one point in time.
type observed struct {
	namespace string
	names     Names
	labels    map[string]string // of everything that the agent creates
	leads     bool
	retention time.Duration // Reconciler.RevisionRetention
	now       time.Time

	service *corev1.Service // in front of the proxy, or nil
	secrets map[string]ownSecret
	known   map[string]*issuedcert.State // the last states of Secrets without a verdict
	signing *certs.CA                    // signs client certificates now, or nil

	// serving is the certificate in service, or nil. If it is delegated, withdrawn says why it may not be used any
	// more, and withdrawnErr why that is unknown.
	serving      *serving.Certificate
	withdrawn    *serving.Refusal
	withdrawnErr error

	// evaluation is that of the certificate that the spec names.
	evaluation    serving.Evaluation
	evaluationErr error

	// revisions returns the revision history, and whether it is reliable.
	revisions func() (serving.History, bool)
}

// ownSecret is a Secret of the agent; nil if it does not exist.
type ownSecret struct {
	secret *corev1.Secret
	err    error
}

// observe reads everything that decide needs, mostly from caches. on says whether the proxy should run.
func (r *Reconciler) observe(
	ctx context.Context, issuer *configv1alpha1.CredentialIssuer, spec serving.Desired,
	service *corev1.Service, on bool,
) observed {
	s := observed{
		namespace: r.Namespace, names: r.Names, labels: r.Labels, leads: r.IsLeader(), now: r.Clock.Now(), service: service,
		retention: r.RevisionRetention,
		secrets:   map[string]ownSecret{}, known: maps.Clone(r.known), signing: r.signing, serving: r.Holder.Current(),
	}
	if on && spec.TLS != nil {
		s.evaluation, s.evaluationErr = r.evaluate(ctx, spec, service)
	}
	if s.serving != nil && s.serving.Delegated {
		s.withdrawn, s.withdrawnErr = r.mayUse(ctx, s.serving.Secret)
	}
	for _, name := range []string{
		r.Names.SignerSecret, r.Names.CASecret, r.Names.TLSSecret, r.Names.LastKnownGoodSecret,
	} {
		secret, err := r.secretOrNil(ctx, r.local(name))
		s.secrets[name] = ownSecret{secret, err}
	}
	s.revisions = func() (serving.History, bool) { return r.revisions(ctx, issuer) }
	return s
}

// observeLive reads Secrets that are about to be written from the API server, because the watch may not have delivered
// the agent's last write yet. If that fails, the cached Secret stays; the write then fails if the Secret has changed.
func (r *Reconciler) observeLive(ctx context.Context, s *observed, names []string) {
	for _, name := range names {
		live := &corev1.Secret{}
		switch err := r.Live.Get(ctx, r.local(name), live); {
		case err == nil:
			s.secrets[name] = ownSecret{secret: live}
		case apierrors.IsNotFound(err):
			s.secrets[name] = ownSecret{}
		}
	}
}

// evaluate checks the certificate that the spec names. It does not read a Secret in another namespace unless its owner
// permits that.
func (r *Reconciler) evaluate(
	ctx context.Context, spec serving.Desired, service *corev1.Service,
) (serving.Evaluation, error) {
	if spec.Delegated {
		refusal, err := r.mayUse(ctx, spec.Secret)
		if err != nil || refusal != nil {
			return serving.Evaluation{Refusal: refusal}, err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, delegatedTimeout)
		defer cancel()
	}
	secret, err := r.secretOrNil(ctx, spec.Secret)
	if err != nil {
		return serving.Evaluation{}, coded(configv1alpha1.CodeSecretUnreadable, err)
	}
	return serving.External(serving.ExternalInput{
		Name: spec.Secret, Secret: secret, Delegated: spec.Delegated, Spec: *spec.TLS, Source: r.bundleSource(ctx, spec.TLS),
		Endpoint: spec.ExternalEndpoint, Names: serving.ClientNames(spec.ImpersonationProxySpec, service),
		Now: r.Clock.Now(),
	}), nil
}

// bundleSource reads the object that certificateAuthorityDataSource names.
func (r *Reconciler) bundleSource(
	ctx context.Context, tls *configv1alpha1.ImpersonationProxyTLSSpec,
) *serving.BundleSource {
	return serving.ReadSource(tls,
		func(name string) (*corev1.ConfigMap, error) {
			found, _, err := r.ConfigMaps.Get(ctx, r.local(name))
			return found, err
		},
		func(name string) (*corev1.Secret, error) { return r.secretOrNil(ctx, r.local(name)) },
		func(name string) (*string, error) { return r.TrustBundle(ctx, name) },
	)
}

// secretOrNil returns a Secret, or nil if it does not exist.
func (r *Reconciler) secretOrNil(ctx context.Context, name types.NamespacedName) (*corev1.Secret, error) {
	secret, found, err := r.Secrets.Get(ctx, name)
	if err != nil || !found {
		return nil, err
	}
	return secret, nil
}

func (s *observed) local(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.namespace, Name: name}
}

// refuseOwnCopy returns an error if the spec names the agent's backup as the source. The agent overwrites the backup,
// and deletes it when something else is served. It is nil if mode is disabled.
func (r *Reconciler) refuseOwnCopy(spec serving.Desired) error {
	if spec.Mode == configv1alpha1.ImpersonationProxyModeDisabled || spec.Secret != r.local(r.Names.LastKnownGoodSecret) {
		return nil
	}
	return fmt.Errorf("invalid tls.secretName: Secret %q is the agent's own backup, which the agent overwrites "+
		"and deletes; name the original Secret", spec.Secret)
}
