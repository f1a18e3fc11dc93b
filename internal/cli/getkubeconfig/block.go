package getkubeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

const blockField = "spec.impersonationProxy.kubeconfig"

// block returns the kubeconfig block in the CredentialIssuer's spec, or nil.
func (o *Options) block() *configv1alpha1.KubeconfigSpec {
	if o.issuer == nil || o.issuer.Spec.ImpersonationProxy == nil {
		return nil
	}
	return o.issuer.Spec.ImpersonationProxy.Kubeconfig
}

// wantedMode returns the mode of the flags. Without one, it is the impersonation proxy if the CredentialIssuer has a
// kubeconfig block and the proxy is not disabled.
func (o *Options) wantedMode() discovery.Mode {
	if o.Mode != "" || o.Auto || o.block() == nil {
		return o.Mode
	}
	for _, strategy := range o.issuer.Status.Strategies {
		if strategy.Type == configv1alpha1.StrategyImpersonationProxy && strategy.Reason == configv1alpha1.ReasonDisabled {
			return ""
		}
	}
	return configv1alpha1.FrontendImpersonationProxy
}

// loginName returns the login that --login names, or "".
func (o *Options) loginName() string {
	if o.Login == LoginPlugin || o.Login == LoginBearer {
		return ""
	}
	return string(o.Login)
}

// useBlock takes values that no flag sets from the CredentialIssuer's kubeconfig block.
func (o *Options) useBlock(input *kubeconfig.Input) error {
	block, name := o.block(), o.loginName()
	if block == nil {
		if name != "" && !o.PrintLogin {
			return ui.WithHint(
				fmt.Errorf("choosing the login %q: CredentialIssuer %q has no %s", name, o.issuer.Name, blockField),
				"use --print-login to print a value for this field",
			)
		}
		return nil
	}
	var login *configv1alpha1.KubeconfigLogin
	if o.Login != LoginBearer {
		var err error
		if login, err = o.chooseLogin(block.Logins, name); err != nil {
			return fmt.Errorf("choosing the login: %w", err)
		}
	}
	if !o.given("generated-name-suffix") {
		chosen := ""
		if login != nil {
			chosen = login.Name
		}
		names := logininfo.Names(block.ClusterName, chosen)
		input.Names = kubeconfig.Names{
			Context: cmp.Or(o.Names.Context, names.Context),
			Cluster: cmp.Or(o.Names.Cluster, names.Cluster),
			User:    cmp.Or(o.Names.User, names.User),
		}
	}
	if login == nil {
		return nil
	}
	o.Progress.Done("discovered login %q", login.Name)
	o.AuthenticatorType, o.AuthenticatorName = discovery.Webhook, login.Authenticator.Name
	if login.RefreshTrustBundle && !o.given("follow") {
		o.Follow = kubeconfig.FollowUsual
	}
	if login.OIDC == nil {
		return nil
	}
	o.AuthenticatorType = discovery.JWT
	if !o.given("oidc-client-id") {
		o.OIDC.ClientID = login.OIDC.ClientID
	}
	if !o.given("oidc-scopes") {
		o.OIDC.Scopes = login.OIDC.Scopes
	}
	if !o.given("oidc-listen-port") {
		o.OIDC.ListenPort = uint16(login.OIDC.ListenPort) //nolint:gosec // validated by the API server, or as a document
	}
	o.OIDC.UpstreamFlow = cmp.Or(o.OIDC.UpstreamFlow, login.OIDC.Flow)
	return nil
}

// chooseLogin returns the login called name. If name is empty, it returns the only login that fits the flags, or nil if
// none fits, as for an authenticator that is not in the block.
func (o *Options) chooseLogin(
	all []configv1alpha1.KubeconfigLogin,
	name string,
) (*configv1alpha1.KubeconfigLogin, error) {
	describe := func(logins []configv1alpha1.KubeconfigLogin) string {
		var texts []string
		for _, login := range logins {
			texts = append(texts, fmt.Sprintf("%q (%s %s)", login.Name, login.Authenticator.Kind, login.Authenticator.Name))
		}
		return strings.Join(texts, ", ")
	}
	var fitting []configv1alpha1.KubeconfigLogin
	for _, login := range all {
		switch {
		case name != "" && login.Name != name,
			o.AuthenticatorName != "" && o.AuthenticatorName != login.Authenticator.Name,
			o.AuthenticatorType != "" && o.AuthenticatorType.Kind() != string(login.Authenticator.Kind),
			name == "" && o.static() != (login.OIDC == nil):
		default:
			fitting = append(fitting, login)
		}
	}
	switch {
	case len(fitting) == 1:
		return &fitting[0], nil
	case o.PrintLogin:
		return nil, nil
	case len(fitting) > 1:
		return nil, ui.WithHint(
			ui.Usage(fmt.Errorf("there are several logins: %s", describe(fitting))),
			"name one of them with --login",
		)
	case name != "":
		return nil, ui.Usage(fmt.Errorf("no login %q; available: %s", name, describe(all)))
	case o.From.URL != "" && len(all) == 1 && !o.static():
		return nil, ui.WithHint(fmt.Errorf("login %s needs a token", describe(all)),
			"use --static-token-env to name the environment variable that holds the token")
	case o.From.URL != "":
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("no login matches; available: %s", describe(all))),
			"name one of them with --login")
	}
	return nil, nil
}

func (o *Options) given(flag string) bool { return o.Given != nil && o.Given(flag) }

// printLogin prints the CredentialIssuer's kubeconfig block with the login of this kubeconfig.
func (o *Options) printLogin(input *kubeconfig.Input) error {
	exec := input.Exec.Concierge
	if exec == nil || o.static() && exec.AuthenticatorType == string(discovery.JWT) {
		return ui.Usage(
			errors.New("--print-login supports only logins with OpenID Connect, or with a token for a WebhookAuthenticator"),
		)
	}
	login := configv1alpha1.KubeconfigLogin{
		Name: cmp.Or(o.loginName(), exec.AuthenticatorName),
		Authenticator: configv1alpha1.KubeconfigAuthenticator{
			Kind: configv1alpha1.AuthenticatorKind(discovery.AuthenticatorType(exec.AuthenticatorType).Kind()),
			Name: exec.AuthenticatorName,
		},
		RefreshTrustBundle: exec.Follow != "",
	}
	if oidc := input.Exec.OIDC; oidc != nil {
		login.OIDC = &configv1alpha1.KubeconfigOIDC{
			ClientID: oidc.ClientID, Scopes: oidc.Scopes, Flow: oidc.UpstreamFlow, ListenPort: int32(oidc.ListenPort),
		}
	}
	block := configv1alpha1.KubeconfigSpec{}
	if there := o.block(); there != nil {
		block = *there.DeepCopy()
	}
	block.ClusterName = cmp.Or(o.Names.Cluster, block.ClusterName, input.Source.ClusterName)
	block.Logins = append(slices.DeleteFunc(block.Logins, func(l configv1alpha1.KubeconfigLogin) bool {
		return l.Name == login.Name
	}), login)
	text, err := yaml.Marshal(
		map[string]any{"spec": map[string]any{"impersonationProxy": map[string]any{"kubeconfig": block}}},
	)
	if err != nil {
		return fmt.Errorf("encoding the login: %w", err)
	}
	if _, err := o.Out.Write(text); err != nil {
		return fmt.Errorf("writing the login: %w", err)
	}
	o.Progress.Info(
		"save the output to FILE and apply it: kubectl patch %s --type merge --patch-file FILE",
		discovery.KubectlName(o.issuer),
	)
	return nil
}
