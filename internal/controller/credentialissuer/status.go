package credentialissuer

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Messages of states that are not errors. Clients of upstream Pinniped know them.
const (
	messageListening = "impersonation proxy is ready to accept client connections"
	messageDisabled  = "impersonation proxy was explicitly disabled by configuration"
	messageAutoOff   = "automatically determined that impersonation proxy should be disabled"

	// The agent never fetches the cluster's signing key from a control-plane node. While the cluster's signer is not
	// used, this strategy is reported as upstream Pinniped reports it on managed clusters.
	messageNoClusterKey = "could not find a healthy kube-controller-manager pod (0 candidates): note that this error is " +
		"the expected " +
		"behavior for some cluster types, including most cloud provider clusters (e.g. GKE, AKS, EKS)"
)

// clusterSigningOff is the strategy while the agent is not configured to use the cluster's own signer.
func clusterSigningOff() configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type:    configv1alpha1.StrategyKubeClusterSigningCertificate,
		Status:  configv1alpha1.StrategyError,
		Reason:  configv1alpha1.ReasonCouldNotFetchKey,
		Message: messageNoClusterKey,
		Findings: []configv1alpha1.StrategyFinding{
			newFinding(configv1alpha1.CodeClusterKeyUnavailable, configv1alpha1.FindingInfo, messageNoClusterKey),
		},
	}
}

// disabled returns the strategy of a proxy that is intentionally off.
func disabled(why configv1alpha1.StrategyFinding) configv1alpha1.CredentialIssuerStrategy {
	return withFindings(proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonDisabled, why.Message), why)
}

func proxyStrategy(
	status configv1alpha1.StrategyStatus,
	reason configv1alpha1.StrategyReason,
	message string,
) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyImpersonationProxy, Status: status, Reason: reason, Message: message,
	}
}

// frontend returns how clients reach the proxy. An empty bundle means the system roots.
func frontend(at serving.Endpoint, bundle []byte) *configv1alpha1.CredentialIssuerFrontend {
	return &configv1alpha1.CredentialIssuerFrontend{
		Type: configv1alpha1.FrontendImpersonationProxy,
		ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{
			Endpoint:                 at.URL(),
			CertificateAuthorityData: base64.StdEncoding.EncodeToString(bundle),
		},
	}
}

// mergeStrategies returns the wanted strategies, each with the time of its last change. It reports whether they differ
// from the current ones, including an obsolete strategy of the agent.
func mergeStrategies(
	have, want []configv1alpha1.CredentialIssuerStrategy,
	now metav1.Time,
) ([]configv1alpha1.CredentialIssuerStrategy, bool) {
	changed := false
	merged := make([]configv1alpha1.CredentialIssuerStrategy, 0, len(want))
	for _, strategy := range want {
		strategy.LastUpdateTime = now
		same := false
		for _, old := range have {
			if old.Type != strategy.Type {
				continue
			}
			stamp := old.LastUpdateTime
			old.LastUpdateTime = now
			if same = equality.Semantic.DeepEqual(old, strategy); same {
				strategy.LastUpdateTime = stamp
			}
		}
		changed = changed || !same
		merged = append(merged, strategy)
	}
	for _, old := range have {
		wanted := slices.ContainsFunc(
			want,
			func(s configv1alpha1.CredentialIssuerStrategy) bool { return s.Type == old.Type },
		)
		changed = changed || !wanted && slices.Contains(strategyOrder(), old.Type)
	}
	return merged, changed
}

// objects returns the names of the agent's objects, which are configurable.
func (r *Reconciler) objects() *configv1alpha1.ObjectNames {
	return &configv1alpha1.ObjectNames{
		Namespace:                      r.Namespace,
		LoadBalancerService:            r.Names.LoadBalancerService,
		ClusterIPService:               r.Names.ClusterIPService,
		GeneratedCertificateSecret:     r.Names.TLSSecret,
		GeneratedCASecret:              r.Names.CASecret,
		LastKnownGoodCertificateSecret: r.Names.LastKnownGoodSecret,
		ServiceAccount:                 r.ServiceAccount,
		RevisionsConfigMap:             r.Names.RevisionsConfigMap,
	}
}

// writeStatus applies the status if it has changed, and records events. Strategies of other writers stay. A CRD that is
// older than the agent rejects unknown fields, so less is written then.
func (r *Reconciler) writeStatus(ctx context.Context, of report) error {
	// API times have a resolution of seconds; a finer one would look like a change each time.
	now := metav1.NewTime(r.Clock.Now()).Rfc3339Copy()
	have := of.issuer.Status
	full := configv1alpha1.CredentialIssuerStatus{
		Strategies:         r.strategies(ctx, of.proxy),
		ServingCertificate: servedStatus(have.ServingCertificate, of.serving, r.Namespace, r.Replicas.Live(), now),
		Transition:         transitionStatus(have.Transition, of.waiting, r.Namespace, now),
		Objects:            r.objects(),
		ObservedGeneration: of.issuer.Generation,
		Revisions:          revisionsStatus(of.history),
	}
	first := r.knownSchema()
	var refused error
	for schema := first; schema <= schemaPinniped; schema++ {
		status, changed, write := schema.merge(have, full, now)
		if !write {
			r.learnSchema(ctx, schema)
			return nil
		}
		if err := r.applyStatus(ctx, of.issuer, status); err != nil {
			if refused = err; !mayBeSchema(err) {
				break
			}
			continue
		}
		if schema > first {
			// The first refusal may have been a transient error rather than the schema.
			more, moreChanged, _ := first.merge(have, full, now)
			if r.applyStatus(ctx, of.issuer, more) == nil {
				schema, status, changed = first, more, moreChanged
			}
		}
		r.learnSchema(ctx, schema)
		r.announce(ctx, of, status.ServingCertificate, changed)
		r.recordOtherChanges(of.issuer, status.Strategies)
		return nil
	}
	return refused
}

// merge returns the status to write for a CRD with this schema. It reports whether the strategies differ from the
// current ones, and whether anything does.
func (s statusSchema) merge(have, full configv1alpha1.CredentialIssuerStatus, now metav1.Time) (
	status configv1alpha1.CredentialIssuerStatus, changed, write bool,
) {
	status = s.reduce(full)
	status.Strategies, changed = mergeStrategies(have.Strategies, status.Strategies, now)
	have.Strategies = status.Strategies
	// Semantic equality ignores what the API does not store: fractions of seconds, empty lists.
	return status, changed, changed || !equality.Semantic.DeepEqual(have, status)
}

// announce records events and logs a message about what was written.
func (r *Reconciler) announce(
	ctx context.Context, of report, served *configv1alpha1.ServingCertificateStatus, changed bool,
) {
	r.announceTransition(of.issuer, of.waiting, served)
	if !changed {
		r.recordChanges(of.issuer, nil, served)
		return
	}
	r.recordChanges(of.issuer, &of.proxy, served)
	log.FromContext(ctx).Info("Updated status.strategies",
		"status", of.proxy.Status, "reason", of.proxy.Reason, "message", of.proxy.Message)
}

func (r *Reconciler) applyStatus(
	ctx context.Context,
	issuer *configv1alpha1.CredentialIssuer,
	status configv1alpha1.CredentialIssuerStatus,
) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("encoding the CredentialIssuer status: %w", err)
	}
	patch := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	gvk, err := r.Client.GroupVersionKindFor(issuer)
	if err != nil {
		return fmt.Errorf("finding the kind of CredentialIssuer: %w", err)
	}
	patch.SetGroupVersionKind(gvk)
	patch.SetName(issuer.Name)
	patch.SetUID(issuer.UID) // not to a new object of the same name
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(patch),
		client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("failed to update CredentialIssuer status: %w", err)
	}
	return nil
}
