package status

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
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

const renewedByAgent = "pinniped-agent" // the Kind of the Renewer of a generated certificate

type snapshot struct {
	*result.Status
	issuer    *configv1alpha1.CredentialIssuer
	spec      configv1alpha1.ImpersonationProxySpec
	secret    *corev1.Secret
	view      plan.AgentView
	bundle    []byte              // published
	chain     []*x509.Certificate // of the Secret
	probed    []session.Met       // the addresses of the endpoint
	history   serving.History     // the revisions
	elsewhere session.Elsewhere   // what clients get at the endpoints of other revisions
	namespace string              // the agent's
}

func (o *Options) gatherStatus(ctx context.Context) (*result.Status, error) {
	namespace, err := o.Session.FindNamespace(ctx)
	if err != nil {
		return nil, err
	}
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	status := &result.Status{CredentialIssuer: issuer.Name, At: o.Session.Now().UTC()}
	status.Transition = result.TransitionOf(issuer.Status.Transition)
	l := &snapshot{Status: status, issuer: issuer, spec: *issuer.Spec.ImpersonationProxy, namespace: namespace}
	l.configured()
	if err := o.readSecret(ctx, l); err != nil {
		return nil, err
	}
	source, err := session.BundleSource(ctx, o.Session.Cluster, namespace, l.spec.TLS)
	if err != nil {
		return nil, err
	}
	if err := o.readAgent(ctx, l); err != nil {
		return nil, err
	}
	if err := o.readHistory(ctx, l); err != nil {
		return nil, err
	}
	l.reported(source)
	o.probeEndpoint(ctx, l)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("checking the endpoint: %w", ctx.Err())
	}
	l.elsewhere = o.Session.AskElsewhere(ctx, l.history, l.view.At)
	l.endpointProblems()
	l.certificate()
	l.judgeClients()
	if err := o.evaluateKubeconfigs(ctx, l); err != nil {
		return nil, err
	}
	o.concludeUsers(ctx, l)
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

func (l *snapshot) configured() {
	l.Configured = &result.ConfiguredStatus{Mode: string(l.spec.Mode), Source: result.SourceGenerated}
	l.Configured.ExternalEndpoint, l.Configured.LoadBalancerIP = l.spec.ExternalEndpoint, l.spec.Service.LoadBalancerIP
	tls := l.spec.TLS
	if tls == nil || tls.SecretName == "" {
		return
	}
	ref := result.ObjectRef{Namespace: l.namespace, Name: tls.SecretName}
	if other, name, ok := strings.Cut(tls.SecretName, "/"); ok {
		ref = result.ObjectRef{Namespace: other, Name: name}
	}
	l.Configured.Source, l.Configured.Secret, l.Configured.Verification = result.SourceSecret, &ref, tls.Verification
	if from := tls.CertificateAuthorityDataSource; from != nil {
		l.Configured.CABundleSource = from.String()
	}
	if tls.CertificateAuthorityData != "" {
		bundle, _ := base64.StdEncoding.DecodeString(tls.CertificateAuthorityData) // reported below if invalid
		l.Configured.CABundle = result.BundleOf(bundle)
	}
}

// readSecret reads the configured Secret and finds its renewer. An error means that the cluster cannot be asked.
func (o *Options) readSecret(ctx context.Context, l *snapshot) error {
	ref := l.Configured.Secret
	if ref == nil {
		return nil
	}
	secret, err := session.ReadSecret(ctx, o.Session.Cluster, ref.Namespace, ref.Name)
	name := ref.Namespace + "/" + ref.Name
	switch {
	case errors.Is(err, discovery.ErrUnreachable), ctx.Err() != nil:
		return fmt.Errorf("reading Secret %q: %w", name, cmp.Or(err, ctx.Err()))
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
	switch {
	case errors.Is(err, discovery.ErrNotFound):
		l.RenewedBy.Trouble = "that Certificate no longer exists, so nothing renews the Secret"
	case err != nil:
		l.notKnown("when cert-manager renews it: %s", err)
	default:
		l.RenewedBy.Issuer = cmp.Or(certificate.Issuer, l.RenewedBy.Issuer)
		if !certificate.RenewalTime.IsZero() {
			l.RenewedBy.RenewalTime = &certificate.RenewalTime
		}
		if !certificate.Ready {
			l.RenewedBy.Trouble = cmp.Or(certificate.Message, "it is not ready")
		}
	}
	return nil
}

// readAgent sets the agent's report about the proxy, and whether the agent runs, which the report does not show.
func (o *Options) readAgent(ctx context.Context, l *snapshot) error {
	strategy := serving.Strategy(l.issuer)
	if strategy == nil {
		return nil
	}
	life, err := o.Session.Life(ctx, l.namespace, l.issuer)
	l.Agent = &result.AgentStatus{
		Status: string(strategy.Status), Reason: string(strategy.Reason), Message: strategy.Message,
		Running: life.Running, LastSeen: life.LastSeen,
	}
	switch {
	case errors.Is(err, discovery.ErrUnreachable), ctx.Err() != nil:
		return fmt.Errorf("reading the Leases of the agent's replicas: %w", cmp.Or(err, ctx.Err()))
	case err != nil:
		l.notKnown("whether the agent runs: %s", err)
	case life.Running == result.AnswerNo && strategy.Reason != configv1alpha1.ReasonDisabled:
		l.problem(codeAgentNotRunning, "no agent replica is running: %s; the agent's report is outdated", life.Gone())
	}
	return nil
}

// reported compares the agent's report with the spec. source has the CA bundle of another object.
func (l *snapshot) reported(source *serving.BundleSource) {
	strategy := serving.Strategy(l.issuer)
	if endpoint, bundle, _ := serving.Frontend(strategy); endpoint != "" {
		l.bundle = bundle
		l.Published = &result.PublishedStatus{Endpoint: endpoint, CABundle: result.BundleOf(bundle)}
	}
	expected := l.bundle
	if tls := l.spec.TLS; tls != nil && l.Transition == nil &&
		(l.secret != nil || tls.CertificateAuthorityData != "" || tls.CertificateAuthorityDataSource != nil) {
		bundle, err := serving.Bundle(*tls, cmp.Or(l.secret, &corev1.Secret{}), source)
		if refusal, ok := errors.AsType[*serving.Refusal](err); ok {
			l.problem(string(refusal.Finding.Code), "%s", refusal.Finding.Message)
		} else if err != nil {
			l.problem(string(certs.NotACertificate), "%s", err)
		} else {
			expected = bundle
			l.otherCA(bundle)
		}
	}
	l.view = plan.ReadStatus(l.issuer, l.spec, expected)
	if l.view.Problem != "" && !l.view.Disabled { // the agent's first error finding says it best
		code, message := "", l.view.Problem
		if strategy != nil && strategy.Status != configv1alpha1.StrategySuccess {
			isError := func(f configv1alpha1.StrategyFinding) bool { return f.Severity == configv1alpha1.FindingError }
			if first := slices.IndexFunc(strategy.Findings, isError); first >= 0 {
				code = strategy.Findings[first].Code
				message = fmt.Sprintf("the agent reports %s: %s", code, strategy.Findings[first].Message)
			}
		}
		l.problem(code, "%s", message)
	}
	if l.view.At.URL == "" {
		l.view.At = l.endpoint()
	}
	served := l.issuer.Status.ServingCertificate
	if served == nil {
		return
	}
	l.Replicas = &result.ReplicaStatus{Total: served.Replicas, Serving: served.ServingReplicas, SHA256: served.SHA256}
	for _, other := range served.OtherReplicas {
		l.Replicas.Others = append(l.Replicas.Others, result.OtherReplica{Name: other.Name, Message: other.Message})
	}
	if served.ServingReplicas < served.Replicas && !l.view.Disabled {
		l.problem("", "%d of %d replicas of the agent serve the certificate", served.ServingReplicas, served.Replicas)
	}
}

// endpoint returns what to probe if the agent reports no working endpoint: that of the status, spec or last revision.
func (l *snapshot) endpoint() plan.Endpoint {
	endpoint, _, _ := serving.Frontend(serving.Strategy(l.issuer))
	urls := []string{endpoint}
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

// expectedSHA256 returns the fingerprint that must be presented, or "" if any certificate that verifies is fine.
func (l *snapshot) expectedSHA256() string {
	switch serving := l.issuer.Status.ServingCertificate; {
	case l.Transition != nil && serving != nil:
		return serving.SHA256
	case len(l.chain) > 0:
		return certs.Fingerprint(l.chain[0].Raw)
	case serving != nil && l.Configured != nil && strings.EqualFold(string(l.Configured.Source), string(serving.Source)):
		return serving.SHA256
	}
	return ""
}

func (o *Options) probeEndpoint(ctx context.Context, l *snapshot) {
	at := l.view.At
	if at.Host == "" || l.view.Disabled {
		return
	}
	met, skipped, err := session.Ask(ctx, o.Session.Network, at)
	if err != nil {
		l.problem(string(certs.EndpointUnreachable), "resolving %q: %s", at.Host, err)
		return
	}
	if len(met)+len(skipped) == 0 {
		l.problem(string(certs.EndpointUnreachable), "%q resolves to no address", at.Host)
	}
	l.probed = met
	for _, one := range met {
		address := result.Address{Address: one.Address}
		if len(one.Chain) > 0 {
			leaf := one.Chain[0]
			address.SHA256, address.NotAfter = certs.Fingerprint(leaf.Raw), new(leaf.NotAfter.UTC())
		}
		if refused := l.refusal(one, l.expectedSHA256()); refused != nil {
			address.Code, address.Problem = refused.Code, strings.TrimPrefix(refused.Message, one.Address+" ")
		} else if one.Silent() {
			address.Problem = silence(one)
		}
		l.Addresses = append(l.Addresses, address)
	}
	for _, one := range skipped {
		address := result.Address{Address: one, Skipped: true, Problem: "there is no route to it from here"}
		l.Addresses = append(l.Addresses, address)
	}
}

// refusal returns why clients refuse the certificate at an address, or why its fingerprint is not sha256, if set.
func (l *snapshot) refusal(one session.Met, sha256 string) *certs.Finding {
	if one.Silent() {
		one.Err = nil // check the certificate first
	}
	want := certs.Expected{SHA256: sha256, Host: l.view.At.Host, Bundle: l.bundle, Now: l.At}
	if problems := certs.CheckServed(want, []certs.Served{one.Served}); len(problems) > 0 {
		return &problems[0]
	}
	return nil
}

func silence(one session.Met) string {
	if one.Err != nil {
		return "presents its certificate, but " + one.Err.Error()
	}
	return fmt.Sprintf("responds to a request with %d %s", one.Status, http.StatusText(one.Status))
}

// losesSome reports whether the certificate in a Secret, if that can be read, would break a client that works now.
func (o *Options) losesSome(ctx context.Context, l *snapshot, name string) bool {
	at, _ := delegation.SecretName(name, l.namespace) // of an invalid name, there is no Secret
	secret, err := session.ReadSecret(ctx, o.Session.Cluster, at.Namespace, at.Name)
	if err != nil || secret == nil || len(l.probed) == 0 {
		return false
	}
	chain, _ := certs.ParseBundle(secret.Data[corev1.TLSCertKey])
	now, next := serving.Served{Chain: l.probed[0].Chain}, serving.Served{Chain: chain}
	return len(chain) > 0 && serving.Judge(serving.Effect(l.history, now, next, l.At)).Refused
}

// certificate sets the certificate to show: the configured, the presented, or the reported one.
func (l *snapshot) certificate() {
	from, chain := result.SourceSecret, l.chain
	if at := slices.IndexFunc(l.probed, presents); len(chain) == 0 && at >= 0 {
		from, chain = result.SourceEndpoint, l.probed[at].Chain
	}
	switch inService := l.issuer.Status.ServingCertificate; {
	case len(chain) > 0:
		leaf := chain[0]
		l.Certificate = &result.CertificateStatus{
			Source: from, SHA256: certs.Fingerprint(leaf.Raw), DNSNames: leaf.DNSNames, Issuer: leaf.Issuer.String(),
			NotBefore: leaf.NotBefore.UTC(), NotAfter: leaf.NotAfter.UTC(),
		}
		for _, ip := range leaf.IPAddresses {
			l.Certificate.IPAddresses = append(l.Certificate.IPAddresses, ip.String())
		}
	case inService != nil:
		l.Certificate = &result.CertificateStatus{
			Source: result.SourceAgent, SHA256: inService.SHA256,
			DNSNames: inService.DNSNames, IPAddresses: inService.IPAddresses,
			NotBefore: inService.NotBefore.UTC(), NotAfter: inService.NotAfter.UTC(),
		}
	default:
		return
	}
	l.Certificate.SecondsLeft = int64(l.Certificate.NotAfter.Sub(l.At).Seconds())
	if from == result.SourceEndpoint && l.Configured != nil && l.Configured.Secret == nil && plan.IsGenerated(l.bundle) {
		l.RenewedBy = &result.Renewer{Kind: renewedByAgent, Name: l.CredentialIssuer}
	}
}

// evaluateKubeconfigs checks which kubeconfigs work with the presented and with the configured certificate.
func (o *Options) evaluateKubeconfigs(ctx context.Context, l *snapshot) error {
	if l.view.At.Host == "" || len(o.kubeconfigs) == 0 {
		return nil
	}
	at, missing, err := o.Session.Endpoint(ctx, l.issuer, l.namespace, "https://"+l.view.At.String())
	if err != nil {
		return err
	}
	if missing != "" {
		l.notKnown("%s", missing)
	}
	for _, one := range l.probed {
		at.Names = append(at.Names, one.Address)
	}
	if others := l.evaluateKubeconfigs(o.kubeconfigs, at); others > 0 && len(o.KubeconfigsFrom) > 0 {
		l.notKnown("%d contexts in the kubeconfigs, because they use other endpoints", others)
	}
	return nil
}
