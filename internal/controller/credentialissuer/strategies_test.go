package credentialissuer

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// fixedStrategy is an OtherStrategy with a fixed report.
type fixedStrategy struct {
	said configv1alpha1.CredentialIssuerStrategy
}

func (f *fixedStrategy) Type() configv1alpha1.StrategyType { return f.said.Type }

func (f *fixedStrategy) Report(context.Context) configv1alpha1.CredentialIssuerStrategy {
	return f.said
}

func clusterSays(
	status configv1alpha1.StrategyStatus, reason configv1alpha1.StrategyReason, message string,
) *fixedStrategy {
	return &fixedStrategy{said: configv1alpha1.CredentialIssuerStrategy{
		Type:   configv1alpha1.StrategyKubeClusterSigningCertificate,
		Status: status, Reason: reason, Message: message,
	}}
}

func TestStrategiesStandInTheOrderInWhichClientsShouldTryThem(t *testing.T) {
	t.Parallel()
	proxy := proxyStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonListening, messageListening)
	ready := clusterSays(configv1alpha1.StrategySuccess, configv1alpha1.ReasonFetchedKey, "good")
	for _, test := range []struct {
		name   string
		others []OtherStrategy
		want   []configv1alpha1.CredentialIssuerStrategy
	}{
		{name: "the proxy alone", want: []configv1alpha1.CredentialIssuerStrategy{clusterSigningOff(), proxy}},
		{
			name: "with the cluster's signer", others: []OtherStrategy{ready},
			want: []configv1alpha1.CredentialIssuerStrategy{ready.said, proxy},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &Reconciler{OtherStrategies: test.others}
			if diff := cmp.Diff(test.want, r.strategies(t.Context(), proxy)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOldCRDsGetOnlyStrategiesThatTheyKnow(t *testing.T) {
	t.Parallel()
	status := configv1alpha1.CredentialIssuerStatus{
		Strategies: []configv1alpha1.CredentialIssuerStrategy{
			clusterSigningOff(), proxyStrategy("Success", "Listening", "m"), {Type: configv1alpha1.StrategyServiceAccountToken},
		},
		Objects: &configv1alpha1.ObjectNames{RevisionsConfigMap: "m", ServiceAccount: "a"}, ObservedGeneration: 7,
		Revisions: []configv1alpha1.RevisionStatus{{ID: "x"}},
	}
	if got := schemaFull.reduce(status); len(got.Strategies) != 3 || got.ObservedGeneration != 7 ||
		len(got.Revisions) != 1 {
		t.Errorf("a new CRD gets %+v", got)
	}
	got := schemaPinniped.reduce(status)
	if len(got.Strategies) != 2 || got.Strategies[1].Type != configv1alpha1.StrategyImpersonationProxy ||
		got.Strategies[0].Findings != nil || got.Objects != nil || got.ObservedGeneration != 0 ||
		len(got.Revisions) != 0 {
		t.Errorf("Pinniped's CRD gets %+v", got)
	}
	if len(status.Strategies) != 3 || status.Strategies[2].Type != configv1alpha1.StrategyServiceAccountToken ||
		status.Strategies[0].Findings == nil {
		t.Error("the status itself was changed")
	}
}

func TestEventsOfOtherStrategies(t *testing.T) {
	t.Parallel()
	events := record.NewFakeRecorder(10)
	strategy := clusterSays(configv1alpha1.StrategyError, configv1alpha1.ReasonPending, "testing")
	r := &Reconciler{Events: events, OtherStrategies: []OtherStrategy{strategy}}
	issuer := &configv1alpha1.CredentialIssuer{}
	tell := func() {
		r.recordOtherChanges(issuer, r.strategies(t.Context(), proxyStrategy("Success", "Listening", "m")))
	}
	next := func() string {
		select {
		case text := <-events.Events:
			return text
		default:
			return ""
		}
	}
	tell()
	if got := next(); got != "" {
		t.Errorf("something that has not ended yet is told: %s", got)
	}
	strategy.said.Status, strategy.said.Reason, strategy.said.Message = "Success", "FetchedKey", "it signs"
	tell()
	tell() // an unchanged report
	if got := next(); !strings.HasPrefix(got, "Normal FetchedKey ") || !strings.Contains(got, "it signs") {
		t.Errorf("got event %q", got)
	}
	strategy.said.Status, strategy.said.Reason, strategy.said.Message = "Error", "CouldNotFetchKey", "it is away"
	tell()
	if got := next(); !strings.HasPrefix(got, "Warning CouldNotFetchKey ") {
		t.Errorf("got event %q", got)
	}
	if got := next(); got != "" {
		t.Errorf("something is told twice: %s", got)
	}
}
