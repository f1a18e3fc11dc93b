package credentialissuer

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/pinniped-toolkit/pinniped/internal/signer"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Messages of the strategy with the cluster's own signer. Clients of upstream Pinniped know the first.
const (
	messageClusterSigns = "key was fetched successfully"
	messageClusterTrial = "testing the cluster's own signer"
	messageSignerUsed   = "users get certificates from the cluster's signer kubernetes.io/kube-apiserver-client, which " +
		"passed a test; the agent has no access to the signer's key"
)

// ClusterSigning is the strategy that issues certificates with the cluster's own signer.
type ClusterSigning struct {
	// State returns the state of that signer.
	State func() signer.ClusterState
}

var _ OtherStrategy = ClusterSigning{}

// Type implements OtherStrategy.
func (ClusterSigning) Type() configv1alpha1.StrategyType {
	return configv1alpha1.StrategyKubeClusterSigningCertificate
}

// Report implements OtherStrategy.
func (c ClusterSigning) Report(context.Context) configv1alpha1.CredentialIssuerStrategy {
	state := c.State()
	switch {
	case !state.Tested:
		return clusterStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonPending, messageClusterTrial)
	case state.Err != nil:
		// Clients of upstream Pinniped look for this prefix.
		message := fmt.Sprintf("%s; %v", messageNoClusterKey, state.Err)
		return withFindings(
			clusterStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonCouldNotFetchKey, clip(message)),
			newFinding(configv1alpha1.CodeClusterSignerUnavailable, configv1alpha1.FindingWarning, state.Err.Error()),
		)
	case state.InfoErr != nil:
		message := clip(state.InfoErr.Error())
		return withFindings(
			clusterStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonCouldNotGetClusterInfo, message),
			newFinding(configv1alpha1.CodeClusterInfoUnavailable, configv1alpha1.FindingWarning, message),
		)
	}
	strategy := withFindings(
		clusterStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonFetchedKey, messageClusterSigns),
		newFinding(configv1alpha1.CodeClusterSignerUsed, configv1alpha1.FindingInfo, messageSignerUsed),
	)
	strategy.Frontend = &configv1alpha1.CredentialIssuerFrontend{
		Type: configv1alpha1.FrontendTokenCredentialRequestAPI,
		TokenCredentialRequestAPIInfo: &configv1alpha1.TokenCredentialRequestAPIInfo{
			Server:                   state.Server,
			CertificateAuthorityData: base64.StdEncoding.EncodeToString(state.CABundle),
		},
	}
	return strategy
}

func clusterStrategy(
	status configv1alpha1.StrategyStatus,
	reason configv1alpha1.StrategyReason,
	message string,
) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyKubeClusterSigningCertificate, Status: status, Reason: reason, Message: message,
	}
}
