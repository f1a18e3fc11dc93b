package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// defaultNamespace is the agent's default namespace.
const defaultNamespace = "pinniped-concierge"

// FindNamespace returns the agent's namespace: that of the flags, or that of the aggregated login API, or that in the
// status of the CredentialIssuer, or the default.
func (s *Session) FindNamespace(ctx context.Context) (string, error) {
	if s.Namespace != "" {
		return s.Namespace, nil
	}
	namespace, err := s.Cluster.AgentNamespace(ctx)
	switch {
	case err == nil:
		return namespace, nil
	case errors.Is(err, discovery.ErrUnreachable), errors.Is(err, discovery.ErrUnauthorized), ctx.Err() != nil:
		return "", fmt.Errorf("finding the agent's namespace: %w", err)
	}
	// The agent may run without the aggregated APIs, and not every user may read APIServices.
	if found, err := s.Cluster.CredentialIssuer(ctx, s.CredentialIssuer); err == nil && found.Status.Objects != nil {
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
		Issuer: issuer, WithoutVerification: !offered("verification"), WithoutTransition: !offered("caTransition"),
	}
	var err error
	switch {
	case plan.ServesGenerated(wanted.TLS):
		err = s.gatherCA(ctx, st, namespace)
	case !offered("secretName"):
		err = ui.WithExitCode(ui.WithHint(
			fmt.Errorf("the agent of CredentialIssuer %q accepts no certificate: its API has no field "+
				"spec.impersonationProxy.tls", issuer.Name),
			"the agent is from Pinniped before version 0.23, or the CustomResourceDefinitions are older than the agent; in the "+
				"second case, apply those of the agent's version"), ui.ExitRefused)
	default:
		err = s.gatherSecret(ctx, st, namespace, wanted.TLS.SecretName)
	}
	if err != nil {
		return nil, err
	}
	if from := wanted.TLS; from != nil && from.CertificateAuthorityDataSource != nil &&
		!offered("certificateAuthorityDataSource") {
		return nil, ui.WithExitCode(ui.WithHint(
			fmt.Errorf("the agent of CredentialIssuer %q cannot read a CA bundle from another object: its API has no field "+
				"spec.impersonationProxy.tls.certificateAuthorityDataSource", issuer.Name),
			"pass the CA bundle as a file: --ca-bundle FILE"), ui.ExitRefused)
	}
	if st.Source, err = BundleSource(ctx, s.Cluster, namespace, wanted.TLS); err != nil {
		return nil, err
	}
	if st.Service, err = s.Service(ctx, issuer, namespace); err != nil {
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

// gatherSecret reads the Secret of a spec, unless it is in another namespace and the agent may not use it.
func (s *Session) gatherSecret(ctx context.Context, st *plan.Snapshot, namespace, secretName string) error {
	name, err := delegation.SecretName(secretName, namespace)
	if err != nil {
		return ui.Usage(err)
	}
	switch {
	case name.Namespace == namespace:
	case st.WithoutVerification:
		refused := certs.NewFinding(certs.SecretNotPermitted, fmt.Sprintf("Secret %q is in another namespace, but this "+
			"agent uses only Secrets in its own namespace %q: its API has no field spec.impersonationProxy.tls.verification, "+
			"so the agent is Pinniped's, or older than the support for Secrets of other namespaces", name, namespace))
		refused.Hint = fmt.Sprintf("put the certificate into a Secret in namespace %q, for example with --cert and --key",
			namespace)
		st.Permission = []certs.Finding{refused}
	default:
		names, _ := discovery.Objects(st.Issuer, namespace)
		agent := types.NamespacedName{Namespace: namespace, Name: names.ServiceAccount}
		if st.Permission, err = s.mayUse(ctx, name, agent); err != nil {
			return err
		}
	}
	if !st.NotPermitted() {
		if st.Secret, err = ReadSecret(ctx, s.Cluster, name.Namespace, name.Name); err != nil {
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
			ui.Usage(fmt.Errorf("invalid value %q for --namespace: the agent of CredentialIssuer %q is in namespace %q",
				s.Namespace, issuer.Name, at.Namespace)),
			"omit --namespace; for a Secret in another namespace, use --secret NAMESPACE/NAME")
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

// BundleSource reads the object that a spec takes the CA bundle from. A missing or forbidden one is part of the result.
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

// Service reads the Service of the configured type. If there is none, it warns and returns nil.
func (s *Session) Service(ctx context.Context, issuer *configv1alpha1.CredentialIssuer,
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

// offered returns whether spec.impersonationProxy.tls has a field in this cluster, which depends on the agent. It reads
// the fields from the API once. If the cluster does not publish them, it assumes our agent.
func (s *Session) offered(ctx context.Context) func(field string) bool {
	if s.hasField == nil {
		fields, err := s.Cluster.TLSFields(ctx)
		s.hasField = func(field string) bool { return err != nil || slices.Contains(fields, field) }
	}
	return s.hasField
}

// mayUse checks whether the agent may use a Secret of another namespace, without reading it: the result does not reveal
// whether the Secret exists. A finding that refuses says why not; a warning says what could not be checked.
func (s *Session) mayUse(ctx context.Context, secret, account types.NamespacedName) ([]certs.Finding, error) {
	refused := func(outcome delegation.Outcome) []certs.Finding {
		return []certs.Finding{delegation.Refusal(outcome, secret, account.Namespace)}
	}
	all, err := s.Cluster.Delegations(ctx, secret.Namespace)
	if errors.Is(err, discovery.ErrNotFound) {
		return refused(delegation.NoDelegations), nil
	}
	if err != nil {
		return nil, WithCodes(fmt.Errorf("checking whether Secret %q may be used: %w", secret, err))
	}
	if !delegation.Decide(secret, account.Namespace, all).Permitted {
		return refused(delegation.NotDelegated), nil
	}
	allowed, err := s.Cluster.MayReadSecret(ctx, account, secret)
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		unknown := certs.NewFinding(certs.SecretNotPermitted, fmt.Sprintf(
			"you are not permitted to check whether RBAC lets the agent's service account %q read Secret %q", account, secret))
		unknown.Severity, unknown.Hint = certs.SeverityWarning, "if it does not, the CredentialIssuer's status says so"
		return []certs.Finding{unknown}, nil
	case err != nil:
		return nil, WithCodes(fmt.Errorf("checking whether Secret %q may be used: %w", secret, err))
	case !allowed:
		return refused(delegation.NotReadable), nil
	}
	return nil, nil
}

// Fits returns an error if the request does not fit this CredentialIssuer.
func Fits(r plan.Request, issuer *configv1alpha1.CredentialIssuer) error {
	objects, _ := discovery.Objects(issuer, r.Namespace)
	if name := r.SecretName(); name.Namespace == objects.Namespace && name.Name == objects.LastKnownGoodCertificateSecret {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --secret: Secret %q is a backup that only the agent "+
			"writes and removes", name)), "name the Secret that the certificate comes from")
	}
	kind := cmp.Or(r.ServiceType, plan.ServiceType(issuer.Spec.ImpersonationProxy))
	if r.LoadBalancerIP != nil && kind != configv1alpha1.ServiceTypeLoadBalancer {
		return ui.WithHint(ui.Usage(fmt.Errorf("--load-balancer-ip needs a Service of type LoadBalancer, but "+
			"CredentialIssuer %q has type %s", issuer.Name, kind)), "add --service-type LoadBalancer")
	}
	endpoint := issuer.Spec.ImpersonationProxy.ExternalEndpoint
	if r.Endpoint != nil {
		endpoint = *r.Endpoint
	}
	if r.ServiceType == configv1alpha1.ServiceTypeNone && endpoint == "" {
		return ui.WithHint(ui.Usage(errors.New("--service-type None needs an external endpoint, because without a Service, "+
			"the agent knows no address")), "name it: --external-endpoint HOST:PORT")
	}
	return nil
}

// IssuedBy returns the controller that fills the Secret according to its annotations and owners, or nil if unknown.
func IssuedBy(secret *corev1.Secret) *result.Renewer {
	const prefix = "cert-manager.io/"
	if name := secret.Annotations[prefix+"certificate-name"]; name != "" {
		renewer := &result.Renewer{Kind: result.CertManagerCertificate, Name: name}
		if issuer := secret.Annotations[prefix+"issuer-name"]; issuer != "" {
			renewer.Issuer = cmp.Or(secret.Annotations[prefix+"issuer-kind"], "Issuer") + " " + issuer
		}
		return renewer
	}
	if owner := metav1.GetControllerOfNoCopy(secret); owner != nil {
		return &result.Renewer{Kind: owner.Kind, Name: owner.Name}
	}
	return nil
}

// Life is whether the agent runs, according to its replicas' Leases.
type Life struct {
	Running  result.Answer
	LastSeen *time.Time // last renewal of a Lease; nil if there is none
}

// Life finds out whether the agent runs, which its status does not show. It is unknown for other agents and old ones.
func (s *Session) Life(ctx context.Context, namespace string, issuer *configv1alpha1.CredentialIssuer) (Life, error) {
	life := Life{Running: result.AnswerUnknown}
	leases, err := s.Cluster.ReplicaLeases(ctx, namespace)
	if err != nil || len(leases) == 0 && issuer.Status.Objects == nil {
		return life, err
	}
	life.Running = result.AnswerNo
	for _, lease := range leases {
		if lease.Lives(s.ServerNow()) {
			life.Running = result.AnswerYes
		}
		if renewed := lease.Renewed.UTC().Truncate(time.Second); life.LastSeen == nil || renewed.After(*life.LastSeen) {
			life.LastSeen = &renewed
		}
	}
	return life, nil
}

// Gone says when an agent that is not running last reported.
func (l Life) Gone() string {
	if l.LastSeen == nil {
		return "no replica has ever reported"
	}
	return "the last report is from " + l.LastSeen.Format(time.RFC3339)
}
