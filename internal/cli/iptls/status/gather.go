package status

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// snapshot is the data for the status.
type snapshot struct {
	*result.Status
	issuer *configv1alpha1.CredentialIssuer
	spec   configv1alpha1.ImpersonationProxySpec
	secret *corev1.Secret
	source *serving.BundleSource // of the CA bundle
	view   plan.AgentView
	// bundle is the published trust bundle.
	bundle []byte
	chain  []*x509.Certificate // of the Secret
	probed []probed            // at the endpoint
	// history has the revisions. waits is true during a transition.
	history serving.History
	// elsewhere is what clients get at the endpoints of other revisions.
	elsewhere session.Elsewhere
	waits     bool
	// losesSome reports whether a client that works now would stop verifying with the certificate in a Secret.
	losesSome func(secret string) bool
	// namespace is the agent's; paths are the values of --kubeconfigs.
	namespace string
	paths     []string
}

// gatherStatus reads the cluster, probes the endpoint, and combines the results.
func (o *Options) gatherStatus(ctx context.Context) (*result.Status, error) {
	namespace, err := o.Session.FindNamespace(ctx)
	if err != nil {
		return nil, err
	}
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	l := &snapshot{
		Status: &result.Status{CredentialIssuer: issuer.Name, At: o.Session.Now().UTC()},
		issuer: issuer, spec: *issuer.Spec.ImpersonationProxy, namespace: namespace, paths: o.KubeconfigsFrom,
		waits: issuer.Status.Transition != nil,
	}
	l.losesSome = func(secret string) bool { return o.losesSome(ctx, l, secret) }
	l.configured(namespace)
	l.Transition = result.TransitionOf(l.issuer.Status.Transition)
	if err := o.readSecret(ctx, l); err != nil {
		return nil, err
	}
	if l.source, err = session.BundleSource(ctx, o.Session.Cluster, namespace, l.spec.TLS); err != nil {
		return nil, err
	}
	l.readAgent()
	if err := o.readLife(ctx, namespace, l); err != nil {
		return nil, err
	}
	if err := o.readHistory(ctx, l); err != nil {
		return nil, err
	}
	l.reported()
	o.probeEndpoint(ctx, l)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("checking the endpoint: %w", ctx.Err())
	}
	l.elsewhere = o.Session.AskElsewhere(ctx, l.history, l.view.At)
	l.endpointProblems()
	l.certificate()
	l.judgeClients()
	if err := o.evaluateKubeconfigs(ctx, namespace, l); err != nil {
		return nil, err
	}
	l.concludeUsers()
	l.InEffect = len(l.Problems) == 0
	return l.Status, nil
}

func (l *snapshot) notKnown(format string, args ...any) {
	l.NotKnown = append(l.NotKnown, fmt.Sprintf(format, args...))
}

// problem adds a problem, unless there is one with the same code: the first one names the cause best.
func (l *snapshot) problem(code, format string, args ...any) {
	if code == "" || !l.hasProblem(code) {
		l.Problems = append(l.Problems, result.Problem{Code: code, Message: fmt.Sprintf(format, args...)})
	}
}

func (l *snapshot) hasProblem(code string) bool {
	return slices.ContainsFunc(l.Problems, func(p result.Problem) bool { return p.Code == code })
}

// configured sets the configuration in the spec.
func (l *snapshot) configured(namespace string) {
	l.Configured = &result.ConfiguredStatus{
		Mode: string(l.spec.Mode), Source: result.SourceGenerated,
		ExternalEndpoint: l.spec.ExternalEndpoint, LoadBalancerIP: l.spec.Service.LoadBalancerIP,
	}
	tls := l.spec.TLS
	if tls == nil || tls.SecretName == "" {
		return
	}
	ref := result.ObjectRef{Namespace: namespace, Name: tls.SecretName}
	if other, name, ok := strings.Cut(tls.SecretName, "/"); ok {
		ref = result.ObjectRef{Namespace: other, Name: name}
	}
	l.Configured.Source, l.Configured.Secret = result.SourceSecret, &ref
	l.Configured.Verification = tls.Verification
	if from := tls.CertificateAuthorityDataSource; from != nil {
		l.Configured.CABundleSource = from.String()
	}
	if tls.CertificateAuthorityData != "" {
		bundle, _ := base64.StdEncoding.DecodeString(tls.CertificateAuthorityData) // reported below if invalid
		l.Configured.CABundle = result.BundleOf(bundle)
	}
}

// readSecret reads the configured Secret and finds its renewer. It returns an error only if the cluster cannot be
// asked.
func (o *Options) readSecret(ctx context.Context, l *snapshot) error {
	ref := l.Configured.Secret
	if ref == nil {
		return nil
	}
	secret, err := session.ReadSecret(ctx, o.Session.Cluster, ref.Namespace, ref.Name)
	name := ref.Namespace + "/" + ref.Name
	switch {
	case errors.Is(err, discovery.ErrUnreachable), ctx.Err() != nil:
		return fmt.Errorf("reading Secret %q: %w", name, err)
	case err != nil:
		l.notKnown("the certificate in Secret %q, and who renews it: %s", name, err)
		return nil
	case secret == nil:
		l.problem(string(certs.SecretNotFound), "there is no Secret %q", name)
		return nil
	}
	l.secret = secret
	l.chain, _ = certs.ParseBundle(secret.Data[corev1.TLSCertKey])
	if len(l.chain) == 0 {
		l.problem(string(certs.NotACertificate), "Secret %q has no readable certificate", name)
	}
	l.RenewedBy = session.IssuedBy(secret)
	if l.RenewedBy == nil || l.RenewedBy.Kind != result.CertManagerCertificate {
		return nil
	}
	certificate, err := o.Session.Cluster.Certificate(ctx, ref.Namespace, l.RenewedBy.Name)
	if err != nil {
		if !errors.Is(err, discovery.ErrNotFound) {
			l.notKnown("when cert-manager renews it: %s", err)
		} else {
			l.RenewedBy.Trouble = "that Certificate no longer exists, so nothing renews the Secret"
		}
		return nil
	}
	l.RenewedBy.Issuer = cmp.Or(certificate.Issuer, l.RenewedBy.Issuer)
	if !certificate.RenewalTime.IsZero() {
		l.RenewedBy.RenewalTime = &certificate.RenewalTime
	}
	if !certificate.Ready {
		l.RenewedBy.Trouble = cmp.Or(certificate.Message, "it is not ready")
	}
	return nil
}

// readAgent sets the agent's report about the proxy.
func (l *snapshot) readAgent() {
	if strategy := serving.Strategy(l.issuer); strategy != nil {
		l.Agent = &result.AgentStatus{
			Status: string(strategy.Status), Reason: string(strategy.Reason),
			Message: strategy.Message,
		}
	}
	l.view.Disabled = l.Agent != nil && l.Agent.Reason == string(configv1alpha1.ReasonDisabled)
}

// reported compares the agent's report with the spec.
func (l *snapshot) reported() {
	if endpoint, bundle, _ := serving.Frontend(serving.Strategy(l.issuer)); endpoint != "" {
		l.bundle = bundle
		l.Published = &result.PublishedStatus{Endpoint: endpoint, CABundle: result.BundleOf(bundle)}
	}
	expected := l.bundle
	if tls := l.spec.TLS; tls != nil && !l.waits &&
		(l.secret != nil || tls.CertificateAuthorityData != "" || tls.CertificateAuthorityDataSource != nil) {
		bundle, err := plan.BundleFor(*tls, l.secret, l.source)
		if refusal, ok := errors.AsType[*serving.Refusal](err); ok {
			l.problem(string(refusal.Finding.Code), "%s", refusal.Finding.Message)
		} else if err != nil {
			l.problem(string(certs.NotACertificate), "%s", err)
		} else {
			expected = bundle
		}
	}
	l.view = plan.ReadStatus(l.issuer, l.spec, expected)
	l.otherCA()
	if l.view.Problem != "" && !l.view.Disabled {
		l.agentProblem()
	}
	if l.view.At.URL == "" {
		l.view.At = l.endpoint()
	}
	inService := l.issuer.Status.ServingCertificate
	if inService == nil {
		return
	}
	l.Replicas = &result.ReplicaStatus{
		Total:   inService.Replicas,
		Serving: inService.ServingReplicas,
		SHA256:  inService.SHA256,
	}
	for _, other := range inService.OtherReplicas {
		l.Replicas.Others = append(l.Replicas.Others, result.OtherReplica{Name: other.Name, Message: other.Message})
	}
	if inService.ServingReplicas < inService.Replicas && !l.view.Disabled {
		l.problem("", "%d of %d replicas of the agent serve the certificate", inService.ServingReplicas, inService.Replicas)
	}
}

// endpoint returns the endpoint to probe if the agent reports no working one: that in the status, in the spec, or of
// the last revision.
func (l *snapshot) endpoint() plan.Endpoint {
	var urls []string
	if endpoint, _, _ := serving.Frontend(serving.Strategy(l.issuer)); endpoint != "" {
		urls = append(urls, endpoint)
	}
	if host, port, err := certs.ParseEndpoint(l.spec.ExternalEndpoint); err == nil {
		urls = append(urls, "https://"+net.JoinHostPort(host, cmp.Or(port, "443")))
	}
	if n := len(l.history.Revisions); n > 0 {
		urls = append(urls, l.history.Revisions[n-1].Endpoint)
	}
	for _, url := range urls {
		if at, err := plan.ParseEndpoint(url); err == nil {
			return at
		}
	}
	return plan.Endpoint{}
}

// readHistory reads the revisions. It returns an error only if the cluster cannot be asked.
func (o *Options) readHistory(ctx context.Context, l *snapshot) error {
	history, _, err := o.Session.History(ctx, l.issuer, l.namespace)
	switch {
	case errors.Is(err, discovery.ErrUnreachable), ctx.Err() != nil:
		return err
	case err != nil:
		l.notKnown("what was published before: %s", err)
		history = history.SinceStatus(l.issuer, l.At, serving.DefaultRetention)
	}
	l.history = history
	return nil
}

// losesSome reports whether a client that works now would stop verifying with the certificate in a Secret. It is false
// if the Secret cannot be read.
func (o *Options) losesSome(ctx context.Context, l *snapshot, name string) bool {
	at, err := delegation.SecretName(name, l.namespace)
	if err != nil {
		return false
	}
	secret, err := session.ReadSecret(ctx, o.Session.Cluster, at.Namespace, at.Name)
	if err != nil || secret == nil || len(l.probed) == 0 {
		return false
	}
	chain, _ := certs.ParseBundle(secret.Data[corev1.TLSCertKey])
	next := serving.Served{Chain: chain}
	return len(chain) > 0 &&
		serving.Judge(serving.Effect(l.history, serving.Served{Chain: l.probed[0].Chain}, next, l.At)).Refused
}

// certificate sets the certificate to show: the configured, the presented, or the reported one.
func (l *snapshot) certificate() {
	from, leaf := result.SourceSecret, (*x509.Certificate)(nil)
	if len(l.chain) > 0 {
		leaf = l.chain[0]
	}
	for _, one := range l.probed {
		if leaf == nil && len(one.Chain) > 0 {
			from, leaf = result.SourceEndpoint, one.Chain[0]
		}
	}
	switch inService := l.issuer.Status.ServingCertificate; {
	case leaf != nil:
		shown := &result.CertificateStatus{
			Source: from, SHA256: certs.Fingerprint(leaf.Raw), DNSNames: leaf.DNSNames, Issuer: leaf.Issuer.String(),
			NotBefore: leaf.NotBefore.UTC(), NotAfter: leaf.NotAfter.UTC(),
		}
		for _, ip := range leaf.IPAddresses {
			shown.IPAddresses = append(shown.IPAddresses, ip.String())
		}
		l.Certificate = shown
	case inService != nil:
		l.Certificate = &result.CertificateStatus{
			Source:      result.SourceAgent,
			SHA256:      inService.SHA256,
			DNSNames:    inService.DNSNames,
			IPAddresses: inService.IPAddresses,
			NotBefore:   inService.NotBefore.UTC(),
			NotAfter:    inService.NotAfter.UTC(),
		}
	default:
		return
	}
	l.Certificate.SecondsLeft = int64(l.Certificate.NotAfter.Sub(l.At).Seconds())
	if l.RenewedBy == nil && from == result.SourceEndpoint && l.Configured != nil && l.Configured.Secret == nil &&
		plan.IsGenerated(l.bundle) {
		l.RenewedBy = &result.Renewer{Kind: renewedByAgent, Name: l.CredentialIssuer}
	}
}

// renewedByAgent is the Kind of the Renewer of a generated certificate.
const renewedByAgent = "pinniped-agent"

// evaluateKubeconfigs checks which kubeconfigs work with the presented and with the configured certificate.
func (o *Options) evaluateKubeconfigs(ctx context.Context, namespace string, l *snapshot) error {
	if l.view.At.Host == "" || len(o.kubeconfigs) == 0 {
		return nil
	}
	at, missing, err := o.Session.Endpoint(ctx, l.issuer, namespace, "https://"+
		net.JoinHostPort(l.view.At.Host, l.view.At.Port))
	if err != nil {
		return err
	}
	if missing != "" {
		l.notKnown("%s", missing)
	}
	now := &presented{at: at, configured: l.chain, bundle: l.bundle, now: l.At}
	for _, one := range l.probed {
		now.at.Names = append(now.at.Names, one.Address)
		if len(one.Chain) > 0 && !slices.ContainsFunc(now.chains,
			func(c []*x509.Certificate) bool { return bytes.Equal(c[0].Raw, one.Chain[0].Raw) }) {
			now.chains = append(now.chains, one.Chain)
		}
	}
	var others int
	l.Kubeconfigs, others = now.evaluateKubeconfigs(o.kubeconfigs)
	if others > 0 && len(o.KubeconfigsFrom) > 0 {
		l.notKnown("%d contexts in the kubeconfigs, because they use other endpoints", others)
	}
	return nil
}
