package credentialissuer

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/satoken"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

const (
	messageTokensIssued   = "users get service account tokens; each account may impersonate only its user"
	messageTokensTrial    = "testing a new service account and its token"
	messageTokensCleaning = "disabled: the service accounts of users are being deleted"
)

// UserTokens is the strategy ServiceAccountToken. satoken.Backend implements it.
type UserTokens interface {
	Configure(settings satoken.Settings)
	State() satoken.State
}

// ServiceAccountTokens reports the strategy ServiceAccountToken.
type ServiceAccountTokens struct{ Tokens UserTokens }

var _ OtherStrategy = ServiceAccountTokens{}

// Type implements OtherStrategy.
func (ServiceAccountTokens) Type() configv1alpha1.StrategyType {
	return configv1alpha1.StrategyServiceAccountToken
}

// Report implements OtherStrategy. The strategy is not listed while it is off.
func (s ServiceAccountTokens) Report(context.Context) configv1alpha1.CredentialIssuerStrategy {
	state := s.Tokens.State()
	failed := func(reason configv1alpha1.StrategyReason, message string) configv1alpha1.CredentialIssuerStrategy {
		return configv1alpha1.CredentialIssuerStrategy{
			Type: s.Type(), Status: configv1alpha1.StrategyError, Reason: reason, Message: clip(message),
		}
	}
	switch {
	case state.Cleaning:
		return failed(configv1alpha1.ReasonDisabled, messageTokensCleaning)
	case !state.Enabled:
		return configv1alpha1.CredentialIssuerStrategy{}
	case !state.Checked:
		return failed(configv1alpha1.ReasonPending, messageTokensTrial)
	case state.Err != nil:
		code := configv1alpha1.CodeUserAccountsUnavailable
		switch {
		case errors.Is(state.Err, satoken.ErrNotPermitted):
			code = configv1alpha1.CodeUserAccountsNotPermitted
		case errors.Is(state.Err, satoken.ErrUnguarded):
			code = configv1alpha1.CodeUserAccountsUnguarded
		}
		return withFindings(
			failed(configv1alpha1.ReasonErrorDuringSetup, state.Err.Error()),
			newFinding(code, configv1alpha1.FindingError, state.Err.Error()),
		)
	case state.InfoErr != nil:
		return withFindings(
			failed(configv1alpha1.ReasonCouldNotGetClusterInfo, state.InfoErr.Error()),
			newFinding(configv1alpha1.CodeClusterInfoUnavailable, configv1alpha1.FindingError, state.InfoErr.Error()),
		)
	}
	message := messageTokensIssued
	if state.Constrained {
		message += " (with constrained impersonation)"
	}
	return withFindings(configv1alpha1.CredentialIssuerStrategy{
		Type:    s.Type(),
		Status:  configv1alpha1.StrategySuccess,
		Reason:  configv1alpha1.ReasonIssuingTokens,
		Message: message,
		Frontend: &configv1alpha1.CredentialIssuerFrontend{
			Type: configv1alpha1.FrontendTokenCredentialRequestAPI,
			TokenCredentialRequestAPIInfo: &configv1alpha1.TokenCredentialRequestAPIInfo{
				Server:                   state.Server,
				CertificateAuthorityData: base64.StdEncoding.EncodeToString(state.CABundle),
			},
		},
	}, newFinding(configv1alpha1.CodeUserAccountsUsed, configv1alpha1.FindingInfo, message))
}

// useServiceAccountTokens turns the strategy on or off, as the spec says. If the status lists the strategy, it was on
// before, perhaps in another process.
func (r *Reconciler) useServiceAccountTokens(issuer *configv1alpha1.CredentialIssuer) {
	if r.UserTokens == nil {
		return
	}
	settings := satoken.Settings{
		Used: slices.ContainsFunc(
			issuer.Status.Strategies,
			func(s configv1alpha1.CredentialIssuerStrategy) bool {
				return s.Type == configv1alpha1.StrategyServiceAccountToken
			},
		),
	}
	if spec := issuer.Spec.ServiceAccountTokens; spec != nil {
		settings.Enabled = spec.Mode == configv1alpha1.ServiceAccountTokensModeEnabled
		settings.Max = int(spec.MaxUsers)
	}
	r.UserTokens.Configure(settings)
}
