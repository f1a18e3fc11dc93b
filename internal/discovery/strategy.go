package discovery

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Mode is the frontend that a client uses. Empty means any.
type Mode = configv1alpha1.FrontendType

// ServiceAccountToken is a mode for a strategy that shares its frontend with another strategy.
const ServiceAccountToken = Mode(configv1alpha1.StrategyServiceAccountToken)

// Auto is the user's input for any mode.
const Auto = "auto"

// ParseMode parses a mode, ignoring case. Empty and "auto" return "".
func ParseMode(text string) (Mode, error) {
	if text == "" || strings.EqualFold(text, Auto) {
		return "", nil
	}
	for _, mode := range Modes() {
		if strings.EqualFold(text, string(mode)) {
			return mode, nil
		}
	}
	return "", fmt.Errorf("invalid mode %q, valid modes are auto, %s, %s and %s", text, Modes()[0], Modes()[1], Modes()[2])
}

// Modes returns all modes.
func Modes() []Mode {
	return []Mode{
		configv1alpha1.FrontendTokenCredentialRequestAPI,
		configv1alpha1.FrontendImpersonationProxy,
		ServiceAccountToken,
	}
}

// Frontend is how a client connects with the chosen strategy.
type Frontend struct {
	Strategy configv1alpha1.StrategyType
	Mode     Mode
	Endpoint string // https://host[:port]
	CABundle []byte // PEM; empty means the system roots
	// Trouble is why the configuration is not in effect, while the last known good certificate is served; empty
	// otherwise.
	Trouble string
}

// usable reports whether clients can use the frontend of a strategy: the strategy works, or the last known good
// certificate, or the agent's own, stays in service until the configuration is fixed.
func usable(strategy *configv1alpha1.CredentialIssuerStrategy) bool {
	return strategy.Frontend != nil && (strategy.Status == configv1alpha1.StrategySuccess ||
		slices.ContainsFunc(strategy.Findings, func(f configv1alpha1.StrategyFinding) bool {
			return f.Code == configv1alpha1.CodeLastKnownGoodCertificateServed ||
				f.Code == configv1alpha1.CodeGeneratedCertificateServed
		}))
}

// ChooseStrategy returns the frontend of the first usable strategy of issuer for mode; the status lists strategies in
// order of preference. It returns a *NoStrategyError if there is none, and another error if the CA bundle is not
// base64.
func ChooseStrategy(issuer *configv1alpha1.CredentialIssuer, mode Mode) (*Frontend, error) {
	for i := range issuer.Status.Strategies {
		strategy := &issuer.Status.Strategies[i]
		frontend := strategy.Frontend
		if !usable(strategy) || !serves(strategy, mode) {
			continue
		}
		switch {
		case frontend.Type == configv1alpha1.FrontendImpersonationProxy && frontend.ImpersonationProxyInfo != nil:
			info := frontend.ImpersonationProxyInfo
			chosen, err := newFrontend(strategy, info.Endpoint, info.CertificateAuthorityData)
			if err == nil && strategy.Status != configv1alpha1.StrategySuccess {
				chosen.Trouble = strategy.Message
			}
			return chosen, err
		case frontend.Type == configv1alpha1.FrontendTokenCredentialRequestAPI && frontend.TokenCredentialRequestAPIInfo != nil:
			info := frontend.TokenCredentialRequestAPIInfo
			return newFrontend(strategy, info.Server, info.CertificateAuthorityData)
		}
	}
	return nil, &NoStrategyError{
		Mode: mode, Issuer: issuer.Name, Strategies: issuer.Status.Strategies, kubectlName: KubectlName(issuer),
	}
}

func newFrontend(
	strategy *configv1alpha1.CredentialIssuerStrategy,
	endpoint, caData string,
) (*Frontend, error) {
	bundle, err := base64.StdEncoding.DecodeString(caData)
	if err != nil {
		return nil, fmt.Errorf("decoding the CA bundle that strategy %s publishes: %w", strategy.Frontend.Type, err)
	}
	return &Frontend{Strategy: strategy.Type, Mode: strategy.Frontend.Type, Endpoint: endpoint, CABundle: bundle}, nil
}

// serves reports whether clients can use a strategy with a frontend in mode.
func serves(strategy *configv1alpha1.CredentialIssuerStrategy, mode Mode) bool {
	return mode == "" || strategy.Frontend.Type == mode ||
		Mode(strategy.Type) == ServiceAccountToken && mode == ServiceAccountToken
}

// NoStrategyError means that no strategy of the CredentialIssuer is usable in mode.
type NoStrategyError struct {
	Mode       Mode
	Issuer     string
	Strategies []configv1alpha1.CredentialIssuerStrategy

	kubectlName string
}

func (e *NoStrategyError) Error() string {
	text := fmt.Sprintf("no successful strategy in CredentialIssuer %q", e.Issuer)
	if e.Mode != "" {
		text = fmt.Sprintf("no successful strategy for mode %s in CredentialIssuer %q", e.Mode, e.Issuer)
	}
	if len(e.Strategies) == 0 {
		return text + ": the agent has not reported any strategy yet"
	}
	states := make([]string, 0, len(e.Strategies))
	for _, s := range e.Strategies {
		states = append(states, fmt.Sprintf("%s is %s (%s: %s)", s.Type, s.Status, s.Reason, s.Message))
	}
	return text + ": " + strings.Join(states, "; ")
}

// Hint returns a hint.
func (e *NoStrategyError) Hint() string {
	var available []string
	for _, s := range e.Strategies {
		if s.Status == configv1alpha1.StrategySuccess && s.Frontend != nil {
			mode := string(s.Frontend.Type)
			if s.Type == configv1alpha1.StrategyServiceAccountToken {
				mode = string(ServiceAccountToken)
			}
			available = append(available, mode)
		}
	}
	switch {
	case len(e.Strategies) == 0:
		return "check whether the agent's pods are running"
	case len(available) > 0:
		return "this cluster supports --concierge-mode " + strings.Join(available, " or ")
	}
	return fmt.Sprintf(
		"the messages above come from the agent; correct spec.impersonationProxy with \"kubectl edit %s\"",
		e.kubectlName,
	)
}

// PendingBefore returns the first pending strategy that is preferred to the one that ChooseStrategy returns, or nil.
// The agent decides within seconds whether it works.
func PendingBefore(issuer *configv1alpha1.CredentialIssuer, mode Mode) *configv1alpha1.CredentialIssuerStrategy {
	for i := range issuer.Status.Strategies {
		strategy := &issuer.Status.Strategies[i]
		if strategy.Reason == configv1alpha1.ReasonPending && !usable(strategy) &&
			(mode == "" || offers(strategy.Type) == mode) {
			return strategy
		}
		if usable(strategy) && serves(strategy, mode) {
			return nil
		}
	}
	return nil
}

// offers returns the mode of a strategy, or "" if the strategy is unknown.
func offers(strategy configv1alpha1.StrategyType) Mode {
	switch strategy {
	case configv1alpha1.StrategyImpersonationProxy:
		return configv1alpha1.FrontendImpersonationProxy
	case configv1alpha1.StrategyKubeClusterSigningCertificate:
		return configv1alpha1.FrontendTokenCredentialRequestAPI
	case configv1alpha1.StrategyServiceAccountToken:
		return ServiceAccountToken
	}
	return ""
}

// Pending reports whether waiting may help: a strategy for mode is pending, or the agent has not reported any strategy.
func (e *NoStrategyError) Pending() bool {
	for _, s := range e.Strategies {
		if s.Reason == configv1alpha1.ReasonPending && (e.Mode == "" || offers(s.Type) == e.Mode) {
			return true
		}
	}
	return len(e.Strategies) == 0
}
