package credentialissuer

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// OtherStrategy is a strategy other than the impersonation proxy.
type OtherStrategy interface {
	// Type is constant.
	Type() configv1alpha1.StrategyType
	// Report returns the strategy for the status from memory: it contacts nothing. When it changes, the strategy
	// triggers a reconcile through Wake. LastUpdateTime need not be set. A strategy without a type is not listed.
	Report(ctx context.Context) configv1alpha1.CredentialIssuerStrategy
}

// strategyOrder is the order of the strategies in the status. Clients use the first successful one. The first two are
// always listed, because clients of upstream Pinniped expect them.
func strategyOrder() []configv1alpha1.StrategyType {
	return []configv1alpha1.StrategyType{
		configv1alpha1.StrategyKubeClusterSigningCertificate,
		configv1alpha1.StrategyImpersonationProxy,
		configv1alpha1.StrategyServiceAccountToken,
	}
}

// strategies returns all strategies of the status, in strategyOrder.
func (r *Reconciler) strategies(
	ctx context.Context,
	proxy configv1alpha1.CredentialIssuerStrategy,
) []configv1alpha1.CredentialIssuerStrategy {
	all := []configv1alpha1.CredentialIssuerStrategy{proxy}
	for _, other := range r.OtherStrategies {
		if strategy := other.Report(ctx); strategy.Type != "" {
			all = append(all, strategy)
		}
	}
	is := func(kind configv1alpha1.StrategyType) func(configv1alpha1.CredentialIssuerStrategy) bool {
		return func(s configv1alpha1.CredentialIssuerStrategy) bool { return s.Type == kind }
	}
	if !slices.ContainsFunc(all, is(configv1alpha1.StrategyKubeClusterSigningCertificate)) {
		all = append(all, clusterSigningOff())
	}
	slices.SortStableFunc(all, func(a, b configv1alpha1.CredentialIssuerStrategy) int {
		return slices.Index(strategyOrder(), a.Type) - slices.Index(strategyOrder(), b.Type)
	})
	return all
}

// recordOtherChanges records one event for each other strategy whose state has changed, unless the new state is
// Pending. The leader calls it after it has written the status.
func (r *Reconciler) recordOtherChanges(
	issuer *configv1alpha1.CredentialIssuer,
	written []configv1alpha1.CredentialIssuerStrategy,
) {
	for _, other := range r.OtherStrategies {
		for _, now := range written {
			if now.Type != other.Type() {
				continue
			}
			key := strategyState{now.Status, now.Reason, now.Message}
			before, recorded := r.recordedOthers[now.Type]
			if !recorded {
				before = stateOf(issuer.Status.Strategies, now.Type)
			}
			if r.recordedOthers == nil {
				r.recordedOthers = map[configv1alpha1.StrategyType]strategyState{}
			}
			r.recordedOthers[now.Type] = key
			if before == key || now.Reason == configv1alpha1.ReasonPending {
				continue
			}
			kind := corev1.EventTypeWarning
			if now.Status == configv1alpha1.StrategySuccess {
				kind = corev1.EventTypeNormal
			}
			r.Events.Event(issuer, kind, string(now.Reason), clip(string(now.Type)+": "+now.Message))
		}
	}
}

// strategyState is the content of an event about a strategy.
type strategyState struct {
	status  configv1alpha1.StrategyStatus
	reason  configv1alpha1.StrategyReason
	message string
}

func stateOf(
	all []configv1alpha1.CredentialIssuerStrategy,
	kind configv1alpha1.StrategyType,
) strategyState {
	for _, s := range all {
		if s.Type == kind {
			return strategyState{s.Status, s.Reason, s.Message}
		}
	}
	return strategyState{}
}
