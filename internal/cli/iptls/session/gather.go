package session

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// defaultNamespace is the agent's default namespace.
const defaultNamespace = "pinniped-concierge"

// FindNamespace returns the agent's namespace: given, or that of the aggregated login API, or that in the status of the
// CredentialIssuer called issuer (empty: the only one), or the default.
func FindNamespace(ctx context.Context, cluster Cluster, given, issuer string) (string, error) {
	if given != "" {
		return given, nil
	}
	namespace, err := cluster.AgentNamespace(ctx)
	switch {
	case err == nil:
		return namespace, nil
	case errors.Is(err, discovery.ErrUnreachable), errors.Is(err, discovery.ErrUnauthorized), ctx.Err() != nil:
		return "", fmt.Errorf("finding the agent's namespace: %w", err)
	}
	// The agent may run without the aggregated APIs, and not every user may read APIServices.
	if found, err := cluster.CredentialIssuer(ctx, issuer); err == nil && found.Status.Objects != nil {
		return found.Status.Objects.Namespace, nil
	}
	return defaultNamespace, nil
}

// Gather reads what Evaluate needs for the wanted configuration of a CredentialIssuer. namespace is the agent's.
func (s *Session) Gather(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string,
	wanted configv1alpha1.ImpersonationProxySpec,
) (*plan.Snapshot, error) {
	offered := s.offered(ctx)
	st := &plan.Snapshot{
		Issuer: issuer, WithoutVerification: !offered.verification, WithoutTransition: !offered.transition,
	}
	var err error
	switch {
	case plan.ServesGenerated(wanted.TLS):
		err = s.gatherCA(ctx, st, namespace)
	case !offered.tls:
		err = errNoTLS(issuer.Name)
	default:
		err = gatherSecret(ctx, s.Cluster, st, namespace, wanted.TLS.SecretName)
	}
	if err != nil {
		return nil, err
	}
	if from := wanted.TLS; from != nil && from.CertificateAuthorityDataSource != nil && !offered.source {
		return nil, errNoSource(issuer.Name)
	}
	if st.Source, err = BundleSource(ctx, s.Cluster, namespace, wanted.TLS); err != nil {
		return nil, err
	}
	if st.Service, err = s.readService(ctx, issuer, namespace); err != nil {
		return nil, err
	}
	s.Stamp(st)
	if host, _, err := certs.ParseEndpoint(wanted.ExternalEndpoint); err == nil && wanted.Service.LoadBalancerIP != "" {
		st.Resolved, _ = s.Network.Resolve(ctx, host) // a failure is reported while waiting
	}
	if st.History, st.Known, err = s.History(ctx, issuer, namespace); err != nil {
		return nil, err
	}
	st.InService = st.History.InService(issuer, st.Secret, namespace)
	return st, nil
}

// gatherCA reads the Secret with the CA of generated certificates, if permitted.
func (s *Session) gatherCA(ctx context.Context, st *plan.Snapshot, namespace string) (err error) {
	objects, _ := discovery.Objects(st.Issuer, namespace)
	st.CASecret, err = ReadSecret(ctx, s.Cluster, objects.Namespace, objects.GeneratedCASecret)
	if errors.Is(err, discovery.ErrForbidden) {
		s.Progress.Info("Secret %q cannot be read (forbidden), so the agent's CA is unknown until it is published",
			objects.GeneratedCASecret)
		return nil
	}
	if err != nil {
		return WithCodes(fmt.Errorf("reading the Secret with the agent's CA: %w", err))
	}
	return nil
}

// GatherNames reads the objects with names of the endpoint: the CredentialIssuer and the Service in front of the proxy.
// It reads no Secret.
func (s *Session) GatherNames(ctx context.Context) (*plan.Snapshot, error) {
	issuer, err := s.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	namespace, err := FindNamespace(ctx, s.Cluster, s.Namespace, s.CredentialIssuer)
	if err != nil {
		return nil, WithCodes(err)
	}
	st := &plan.Snapshot{Issuer: issuer}
	if st.Service, err = s.readService(ctx, issuer, namespace); err != nil {
		return nil, err
	}
	s.Stamp(st)
	return st, nil
}

// gatherSecret reads the Secret of a spec, unless it is in another namespace and the agent may not use it.
func gatherSecret(ctx context.Context, cluster Cluster, st *plan.Snapshot, namespace, secretName string) error {
	name, err := delegation.SecretName(secretName, namespace)
	if err != nil {
		return ui.Usage(err)
	}
	switch {
	case name.Namespace == namespace:
	case st.WithoutVerification:
		st.Permission = ownNamespaceOnly(name, namespace)
	default:
		if st.Permission, err = mayUse(ctx, cluster, name, agentAccount(namespace, st.Issuer)); err != nil {
			return err
		}
	}
	if !st.NotPermitted() {
		if st.Secret, err = ReadSecret(ctx, cluster, name.Namespace, name.Name); err != nil {
			return WithCodes(fmt.Errorf("reading the Secret with the certificate: %w", err))
		}
	}
	return nil
}

// ReadIssuer reads the CredentialIssuer of the flags, or the only one.
func (s *Session) ReadIssuer(ctx context.Context) (*configv1alpha1.CredentialIssuer, error) {
	name := s.CredentialIssuer
	issuer, err := s.Cluster.CredentialIssuer(ctx, name)
	if name == "" && errors.Is(err, discovery.ErrForbidden) {
		// A user who may not list CredentialIssuers may still read the default one.
		if usual, again := s.Cluster.CredentialIssuer(ctx, discovery.DefaultAppName+"-config"); again == nil {
			issuer, err = usual, nil
		}
	}
	if err != nil {
		return nil, WithCodes(fmt.Errorf("finding the CredentialIssuer: %w", err))
	}
	if issuer.Spec.ImpersonationProxy == nil {
		return nil, ui.WithHint(fmt.Errorf("CredentialIssuer %q has no spec.impersonationProxy", issuer.Name),
			"its agent does not support the proxy; apply the manifests in deploy/ again")
	}
	if at := issuer.Status.Objects; at != nil && at.Namespace != "" && s.Namespace != "" && at.Namespace != s.Namespace {
		return nil, ui.WithHint(
			ui.Usage(fmt.Errorf("invalid value %q for --namespace: the agent of CredentialIssuer %q is in "+
				"namespace %q", s.Namespace, issuer.Name, at.Namespace)),
			"omit --namespace; for a Secret in another namespace, use --secret NAMESPACE/NAME",
		)
	}
	return issuer, nil
}

// ReadSecret reads a Secret. It returns nil if the Secret does not exist, which a check reports.
func ReadSecret(ctx context.Context, cluster Cluster, namespace, name string) (*corev1.Secret, error) {
	if name == "" {
		return nil, nil
	}
	secret, err := cluster.Secret(ctx, namespace, name)
	if errors.Is(err, discovery.ErrNotFound) {
		return nil, nil
	}
	return secret, err
}

// BundleSource reads the object that a spec takes the CA bundle from, or returns nil if there is none. A missing or
// forbidden object is part of the result.
func BundleSource(
	ctx context.Context, cluster Cluster, namespace string, tls *configv1alpha1.ImpersonationProxyTLSSpec,
) (*serving.BundleSource, error) {
	source := serving.ReadSource(tls,
		func(name string) (*corev1.ConfigMap, error) {
			found, err := cluster.ConfigMap(ctx, namespace, name)
			return found, withoutNotFound(err)
		},
		func(name string) (*corev1.Secret, error) { return ReadSecret(ctx, cluster, namespace, name) },
		func(name string) (*string, error) {
			pem, err := cluster.ClusterTrustBundle(ctx, name)
			if err != nil {
				return nil, withoutNotFound(err)
			}
			return &pem, nil
		},
	)
	if source != nil && (errors.Is(source.Err, discovery.ErrUnreachable) || ctx.Err() != nil) {
		return nil, WithCodes(fmt.Errorf("reading %s: %w", tls.CertificateAuthorityDataSource, source.Err))
	}
	return source, nil
}

func withoutNotFound(err error) error {
	if errors.Is(err, discovery.ErrNotFound) {
		return nil
	}
	return err
}

// readService reads the Service that the agent creates for the configured type. If there is none, it warns and returns
// nil.
func (s *Session) readService(ctx context.Context, issuer *configv1alpha1.CredentialIssuer,
	namespace string,
) (*corev1.Service, error) {
	service, missing, err := discovery.FindService(ctx, s.Cluster, issuer, namespace)
	if err != nil {
		return nil, WithCodes(fmt.Errorf("reading the Service in front of the impersonation proxy: %w", err))
	}
	if missing != "" {
		s.Progress.Warn("%s", missing)
	}
	return service, nil
}
