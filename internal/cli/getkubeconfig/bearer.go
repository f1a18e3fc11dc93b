package getkubeconfig

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Login is how clients log in.
type Login string

// The kinds of login.
const (
	LoginPlugin Login = "plugin" // kubectl runs pinniped as a credential plugin; the default
	LoginBearer Login = "bearer" // clients send a token to the impersonation proxy
)

// validateLogin checks the flags for --login bearer.
func (o *Options) validateLogin() error {
	if o.Login != LoginBearer {
		if o.TokenFile != "" {
			return errors.New("--token-file requires --login bearer")
		}
		return nil
	}
	if o.TokenFile == "" {
		return errors.New("--login bearer needs --token-file")
	}
	for flag, set := range map[string]bool{
		"static-token": o.StaticToken != "", "static-token-env": o.StaticTokenEnv != "", "no-concierge": o.NoConcierge, "oidc-issuer": o.OIDC.Issuer != "",
	} {
		if set {
			return fmt.Errorf("--%s cannot be combined with --login bearer", flag)
		}
	}
	if o.Mode == configv1alpha1.FrontendTokenCredentialRequestAPI || o.Mode == discovery.ServiceAccountToken {
		return errors.New("--login bearer needs the impersonation proxy: omit --concierge-mode")
	}
	return nil
}

// discoverBearer finds the impersonation proxy, and checks that it accepts tokens of the authenticator.
func (o *Options) discoverBearer(ctx context.Context, cluster Discoverer, input *kubeconfig.Input) error {
	o.Mode = configv1alpha1.FrontendImpersonationProxy
	frontend, err := o.discoverFrontend(ctx, cluster)
	if err != nil {
		return err
	}
	if err := o.checkBearer(); err != nil {
		return err
	}
	if err := o.useBlock(input); err != nil {
		return err
	}
	input.TokenFile = o.TokenFile
	return o.connection(frontend, input)
}

// checkBearer returns an error if the impersonation proxy does not accept tokens of the chosen authenticator.
func (o *Options) checkBearer() error {
	const field = "spec.impersonationProxy.bearerTokens.authenticators"
	var accepted []string
	var chosen bool
	if proxy := o.issuer.Spec.ImpersonationProxy; proxy != nil && proxy.BearerTokens != nil {
		for _, entry := range proxy.BearerTokens.Authenticators {
			accepted = append(accepted, string(entry.Kind)+" "+entry.Name)
			chosen = chosen || (o.AuthenticatorName == "" || o.AuthenticatorName == entry.Name) &&
				(o.AuthenticatorType == "" || o.AuthenticatorType.Kind() == string(entry.Kind))
		}
	}
	var err error
	switch {
	case len(accepted) == 0:
		err = errors.New("the impersonation proxy accepts no tokens from authenticators")
	case !chosen:
		wanted := "authenticator"
		if o.AuthenticatorType != "" {
			wanted = o.AuthenticatorType.Kind()
		}
		if o.AuthenticatorName != "" {
			wanted += fmt.Sprintf(" %q", o.AuthenticatorName)
		}
		err = fmt.Errorf(
			"the impersonation proxy accepts no tokens from %s, only from %s",
			wanted,
			strings.Join(accepted, ", "),
		)
	}
	if err != nil {
		return ui.WithHint(err, "add the authenticator to %s of CredentialIssuer %q", field, o.issuer.Name)
	}
	o.Progress.Done("discovered that the proxy accepts tokens from %s", strings.Join(accepted, ", "))
	return nil
}
