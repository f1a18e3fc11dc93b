package getkubeconfig

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// OIDCOptions are the flags for logins with an OpenID Connect issuer.
type OIDCOptions kubeconfig.OIDC

func (o *OIDCOptions) addFlags(flags *pflag.FlagSet, caBundle *bundleFlag) {
	flags.StringVar(&o.Issuer, "oidc-issuer", "", "OpenID Connect issuer (default: the JWTAuthenticator's)")
	flags.StringVar(&o.ClientID, "oidc-client-id", oidclogin.DefaultClientID, "OpenID Connect client ID")
	flags.Uint16Var(
		&o.ListenPort,
		"oidc-listen-port",
		0,
		"port on localhost for the browser's response (0: any free port)",
	)
	flags.StringSliceVar(&o.Scopes, "oidc-scopes", oidclogin.DefaultScopes(), "OpenID Connect scopes to request")
	flags.BoolVar(&o.SkipBrowser, "oidc-skip-browser", false, "do not open a browser at login, only print the link")
	flags.BoolVar(&o.SkipListen, "oidc-skip-listen", false, "do not listen on localhost at login")
	flags.StringVar(
		&o.SessionCache,
		"oidc-session-cache",
		"",
		"file that caches users' sessions (default: the plugin's default file)",
	)
	flags.Var(
		caBundle,
		"oidc-ca-bundle",
		"PEM file with the issuer's CA bundle, repeatable (default: the JWTAuthenticator's)",
	)
	flags.BoolVar(
		&o.DebugSessionCache,
		"oidc-debug-session-cache",
		false,
		"print session cache events at login",
	)
	flags.StringVar(
		&o.RequestAudience,
		"oidc-request-audience",
		"",
		"audience to request with a token exchange (default: the JWTAuthenticator's)",
	)
	flags.StringVar(&o.UpstreamName, "upstream-identity-provider-name", "", "name of the Supervisor's identity provider")
	flags.StringVar(
		&o.UpstreamType,
		"upstream-identity-provider-type",
		"",
		"type of the Supervisor's identity provider: "+strings.Join(oidclogin.UpstreamTypes(), ", "),
	)
	flags.StringVar(
		&o.UpstreamFlow,
		"upstream-identity-provider-flow",
		"",
		"how users log in: "+strings.Join(oidclogin.Flows(), ", "),
	)
	flags.Lookup("oidc-skip-listen").Hidden = true
	flags.Lookup("oidc-debug-session-cache").Hidden = true
}

func (o *OIDCOptions) validate() error {
	for flag, f := range map[string]struct {
		value    string
		accepted []string
	}{
		"upstream-identity-provider-type": {o.UpstreamType, oidclogin.UpstreamTypes()},
		"upstream-identity-provider-flow": {o.UpstreamFlow, oidclogin.Flows()},
	} {
		if f.value != "" && !slices.Contains(f.accepted, f.value) {
			return fmt.Errorf("invalid value %q for --%s, supported values are %q", f.value, flag, f.accepted)
		}
	}
	return nil
}

// fromAuthenticator takes values that no flag sets from the JWTAuthenticator.
func (o *OIDCOptions) fromAuthenticator(
	ctx context.Context,
	cluster Discoverer,
	authenticator *discovery.Authenticator,
) error {
	spec := &authenticator.JWT.Spec
	o.Issuer = cmp.Or(o.Issuer, spec.Issuer)
	o.RequestAudience = cmp.Or(o.RequestAudience, spec.Audience)
	if len(o.CABundle) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	bundle, err := cluster.AuthenticatorCABundle(ctx, spec.TLS)
	if err == nil && len(bundle) > 0 {
		_, err = kubeconfig.CountCertificates(bundle)
	}
	if err != nil {
		return ui.WithHint(
			fmt.Errorf(
				"tried to autodiscover --oidc-ca-bundle, but JWTAuthenticator %q has no usable CA bundle: %w",
				authenticator.Name,
				err,
			),
			"set the issuer's CA bundle with --oidc-ca-bundle",
		)
	}
	o.CABundle = bundle
	return nil
}

// discover reads the issuer's metadata and returns a suitable login. It changes only its copy of the options.
func (o OIDCOptions) discover(ctx context.Context, progress *ui.Progress) (*kubeconfig.OIDC, error) {
	if o.Issuer == "" {
		return nil, ui.WithHint(ui.Usage(errors.New("could not autodiscover --oidc-issuer and none was provided")),
			"use --static-token-env for logins with a token, or --oidc-issuer for logins with OpenID Connect")
	}
	if err := o.askIssuer(ctx, progress); err != nil {
		return nil, err
	}
	if strings.Contains(o.RequestAudience, ".pinniped.dev") {
		return nil, ui.Usage(
			fmt.Errorf("request audience is not allowed to include the substring '.pinniped.dev': %s", o.RequestAudience),
		)
	}
	login := kubeconfig.OIDC(o)
	return &login, nil
}

// askIssuer adapts scopes and identity provider to the metadata of a Supervisor. It changes nothing for other issuers.
func (o *OIDCOptions) askIssuer(ctx context.Context, progress *ui.Progress) error {
	client, err := discovery.NewHTTPClient(nil, o.CABundle)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var metadata struct {
		Issuer          string   `json:"issuer"`
		ScopesSupported []string `json:"scopes_supported"`
		Supervisor      struct {
			IdentityProviders string `json:"pinniped_identity_providers_endpoint"`
		} `json:"discovery.supervisor.pinniped.dev/v1alpha1"`
	}
	doing := fmt.Sprintf("fetching OIDC discovery data from issuer %q", o.Issuer)
	address := strings.TrimSuffix(o.Issuer, "/") + "/.well-known/openid-configuration"
	if err := getJSON(ctx, client, address, &metadata); err != nil {
		return ui.WithHint(fmt.Errorf("%s: %w", doing, err), "%s", issuerHint(err))
	}
	if metadata.Issuer != o.Issuer {
		err := fmt.Errorf("%s: its discovery document names a different issuer, %q", doing, metadata.Issuer)
		return ui.WithHint(err, "%s", cmp.Or(oidclogin.TenantHint(metadata.Issuer),
			"set --oidc-issuer to the issuer in the document, or correct the issuer's configuration"))
	}
	if metadata.Supervisor.IdentityProviders == "" {
		return nil
	}
	if !slices.Contains(metadata.ScopesSupported, "username") || !slices.Contains(metadata.ScopesSupported, "groups") {
		o.Scopes = slices.DeleteFunc(
			slices.Clone(o.Scopes),
			func(scope string) bool { return scope == "username" || scope == "groups" },
		)
	}
	if o.UpstreamName != "" && o.UpstreamType != "" && o.UpstreamFlow != "" {
		return nil
	}
	doing = fmt.Sprintf("fetching the identity providers of Supervisor %q", o.Issuer)
	address = metadata.Supervisor.IdentityProviders
	if endpoint, err := url.Parse(address); err != nil || endpoint.Scheme != "https" {
		return fmt.Errorf("%s: %q is not an https URL", doing, address)
	}
	var list struct {
		Providers []upstream `json:"pinniped_identity_providers"`
	}
	if err := getJSON(ctx, client, address, &list); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return o.chooseUpstream(list.Providers, progress)
}

// upstream is an identity provider behind a Supervisor.
type upstream struct {
	Name  string   `json:"name"`
	Type  string   `json:"type"`
	Flows []string `json:"flows,omitempty"`
}

// chooseUpstream selects the only identity provider that fits the flags, and its first flow.
func (o *OIDCOptions) chooseUpstream(all []upstream, progress *ui.Progress) error {
	if len(all) == 0 {
		return nil
	}
	var fitting []upstream
	for _, u := range all {
		if (o.UpstreamName == "" || o.UpstreamName == u.Name) && (o.UpstreamType == "" || o.UpstreamType == u.Type) {
			fitting = append(fitting, u)
		}
	}
	wanted := ""
	if o.UpstreamName != "" {
		wanted += fmt.Sprintf(" with name %q", o.UpstreamName)
	}
	if o.UpstreamType != "" {
		wanted += fmt.Sprintf(" of type %q", o.UpstreamType)
	}
	found, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encoding the identity providers: %w", err)
	}
	switch len(fitting) {
	case 0:
		return ui.Usage(
			fmt.Errorf("no Supervisor upstream identity providers%s were found. Found these upstreams: %s", wanted, found),
		)
	case 1:
	default:
		return ui.Usage(
			fmt.Errorf(
				"multiple Supervisor upstream identity providers%s were found, so the "+
					"--upstream-identity-provider-name/--upstream-identity-provider-type flags must be specified. Found these "+
					"upstreams: %s",
				wanted,
				found,
			),
		)
	}
	chosen := fitting[0]
	o.UpstreamName, o.UpstreamType = chosen.Name, chosen.Type
	switch {
	case o.UpstreamFlow != "" && len(chosen.Flows) > 0 && !slices.Contains(chosen.Flows, o.UpstreamFlow):
		return ui.Usage(
			fmt.Errorf(
				"no client flow %q for Supervisor upstream identity provider %q of type %q was found. Found these flows: %q",
				o.UpstreamFlow,
				chosen.Name,
				chosen.Type,
				chosen.Flows,
			),
		)
	case o.UpstreamFlow == "" && len(chosen.Flows) > 0:
		o.UpstreamFlow = chosen.Flows[0]
		if len(chosen.Flows) > 1 {
			progress.Info(
				"identity provider %q has several flows (%q); using the first one: choose another with "+
					"--upstream-identity-provider-flow",
				chosen.Name,
				chosen.Flows,
			)
		}
	}
	progress.Done("discovered Supervisor upstream identity provider %q of type %q", chosen.Name, chosen.Type)
	return nil
}

// issuerHint returns a hint for an error while reading the issuer's metadata.
func issuerHint(err error) string {
	var status statusError
	var tooLarge *http.MaxBytesError
	if hint := oidclogin.CertificateHint(err, "set the issuer's CA bundle with --oidc-ca-bundle"); hint != "" {
		return hint
	}
	switch {
	case errors.As(err, &status) && status < http.StatusInternalServerError:
		return "check --oidc-issuer: the discovery document must be at this URL plus /.well-known/openid-configuration"
	case errors.As(err, &status):
		return "the issuer has a problem: try again later, or contact its administrator"
	case errors.As(err, &tooLarge):
		return "check --oidc-issuer: a discovery document is much smaller than this response"
	case errors.Is(err, errNotJSON):
		return "check --oidc-issuer: the server at this URL is not an OpenID Connect issuer"
	}
	return "check that --oidc-issuer is correct and that this computer can reach the issuer (DNS, firewall, " +
		"HTTPS_PROXY); users' computers must reach it too"
}

// errNotJSON means that a response is not the expected JSON.
var errNotJSON = errors.New("the response is not the expected JSON")

// statusError is a status code other than 200.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("unexpected status code %d", int(s)) }

// getJSON decodes the response to a GET.
func getJSON(ctx context.Context, client *http.Client, address string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return discovery.WithoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	const most = 1_000_000
	body, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, most))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fmt.Errorf("the response is larger than %d bytes: %w", most, err)
	}
	if err != nil {
		return fmt.Errorf("reading the response: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return statusError(response.StatusCode)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return errNotJSON
	}
	return nil
}
