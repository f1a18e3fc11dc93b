package login

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// flowVariable overrides --upstream-identity-provider-flow, because the user knows whether there is a browser.
const flowVariable = "PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW"

// OIDCOptions holds the inputs of `login oidc`; a test fills it directly.
type OIDCOptions struct {
	Plugin Plugin

	Issuer          string
	ClientID        string
	ListenPort      uint16
	Scopes          []string
	SkipBrowser     bool
	SkipListen      bool
	SessionCache    string
	CABundlePaths   []string
	CABundleData    []string
	DebugSessions   bool
	RequestAudience string
	UpstreamName    string
	UpstreamType    string
	UpstreamFlow    string

	ReadFile    func(path string) ([]byte, error)
	LookupEnv   func(string) (string, bool)
	OpenBrowser func(ctx context.Context, address string) error

	noPlace func() error     // why there is no session cache, unless it is switched off
	login   *oidclogin.Login // set by Validate
}

func newOIDC(f *factory.Factory) *cobra.Command {
	o := &OIDCOptions{
		Plugin: newPlugin(f), ReadFile: kubeconfig.ReadInput, LookupEnv: f.LookupEnv,
		OpenBrowser: browser{getenv: f.Getenv}.open,
	}
	cmd := &cobra.Command{
		Use:   "oidc",
		Short: "Log in with an OpenID Connect issuer",
		Long: `Log in with an OpenID Connect issuer and print an ExecCredential for kubectl. The command caches and refreshes the session,
so users rarely log in by hand. With --enable-concierge, the command exchanges the ID token for a short-lived credential of
the cluster and caches that credential too. Otherwise, the ID token itself is the credential.

Users log in with one of these flows (--upstream-identity-provider-flow, or PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW):

  browser_authcode   in a browser on this computer; if it has none, open the printed link elsewhere and paste the code
  device_code        in a browser on another device, with a short code
  cli_password       with a username and password from the terminal, or from PINNIPED_USERNAME and PINNIPED_PASSWORD; only
                     with a Pinniped Supervisor

With PINNIPED_SKIP_PRINT_LOGIN_URL=true, the command prints nothing once a browser is open. Use this with full-screen
programs such as k9s. With PINNIPED_DEBUG=true, the command prints its decisions.`,
		Example: `  # In a kubeconfig, as written by "pinniped get kubeconfig"
  pinniped login oidc --issuer https://issuer.example.com --client-id pinniped-cli

  # On a computer without a browser
  PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW=device_code kubectl get pods`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Plugin.readEnvironment(f)
			return execute(cmd.Context(), o)
		},
	}
	o.addFlags(f, cmd.Flags())
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"upstream-identity-provider-type": factory.CompleteValues(oidclogin.UpstreamTypes()...),
		"upstream-identity-provider-flow": factory.CompleteValues(oidclogin.Flows()...),
	})
	return cmd
}

func (o *OIDCOptions) addFlags(f *factory.Factory, flags *pflag.FlagSet) {
	flags.StringVar(&o.Issuer, "issuer", "", "OpenID Connect issuer (required)")
	flags.StringVar(&o.ClientID, "client-id", oidclogin.DefaultClientID, "OpenID Connect client ID")
	flags.Uint16Var(&o.ListenPort, "listen-port", 0, "port on localhost for the browser's response (0: any free port)")
	flags.StringSliceVar(&o.Scopes, "scopes", oidclogin.DefaultScopes(), "OpenID Connect scopes to request")
	flags.BoolVar(&o.SkipBrowser, "skip-browser", false, "do not open a browser, only print the link")
	flags.BoolVar(
		&o.SkipListen,
		"skip-listen",
		false,
		"do not listen on localhost; paste the code into the terminal instead",
	)
	flags.Lookup("skip-listen").Hidden = true
	flags.StringVar(
		&o.SessionCache,
		"session-cache",
		DefaultPath(f, SessionsFile),
		"path of the session cache (empty: no cache)",
	)
	o.noPlace = func() error {
		if o.SessionCache != "" || flags.Changed("session-cache") {
			return nil
		}
		_, err := f.ConfigDir()
		return err
	}
	flags.StringSliceVar(
		&o.CABundlePaths,
		"ca-bundle",
		nil,
		"PEM file with the issuer's CA bundle, repeatable (default: the system roots)",
	)
	flags.StringSliceVar(
		&o.CABundleData,
		"ca-bundle-data",
		nil,
		"the issuer's CA bundle as base64-encoded PEM, repeatable",
	)
	flags.BoolVar(&o.DebugSessions, "debug-session-cache", false, "print session cache events")
	flags.Lookup("debug-session-cache").Hidden = true
	flags.StringVar(&o.RequestAudience, "request-audience", "", "audience to request with a token exchange")
	flags.StringVar(&o.UpstreamName, "upstream-identity-provider-name", "", "name of the Supervisor's identity provider")
	flags.StringVar(
		&o.UpstreamType,
		"upstream-identity-provider-type",
		"oidc",
		"type of the Supervisor's identity provider: "+strings.Join(oidclogin.UpstreamTypes(), ", "),
	)
	flags.StringVar(
		&o.UpstreamFlow,
		"upstream-identity-provider-flow",
		"",
		"how to log in: "+strings.Join(oidclogin.Flows(), ", ")+" (default: depends on the provider's type)",
	)
	o.Plugin.addFlags(f, flags)
}

// Complete applies the environment.
func (o *OIDCOptions) Complete() error {
	if o.Issuer == "" {
		return ui.WithHint(
			ui.Usage(errors.New(`required flag(s) "issuer" not set`)),
			"use \"pinniped get kubeconfig --oidc-issuer\" to create a kubeconfig that sets this flag",
		)
	}
	o.Plugin.complete()
	o.resolve()
	return nil
}

// resolve overrides the kubeconfig's values with the environment's.
func (o *OIDCOptions) resolve() {
	if flow, set := o.LookupEnv(flowVariable); set {
		o.UpstreamFlow = flow
	}
	o.Plugin.Debug = o.Plugin.Debug || o.DebugSessions
}

// Validate checks the flags, without a network.
func (o *OIDCOptions) Validate() error {
	if err := o.Plugin.validate(); err != nil {
		return err
	}
	if issuer, err := url.Parse(o.Issuer); err != nil || issuer.Scheme != "https" || issuer.Host == "" {
		return ui.Usage(fmt.Errorf("invalid --issuer %q: it must be an https URL", o.Issuer))
	}
	flow, err := chooseFlow(o.UpstreamType, o.UpstreamFlow)
	if err != nil {
		return ui.Usage(err)
	}
	bundle, err := ReadBundles(o.ReadFile, o.CABundlePaths, o.CABundleData)
	if err != nil {
		return err
	}
	quiet, _ := o.LookupEnv("PINNIPED_SKIP_PRINT_LOGIN_URL")
	o.login = &oidclogin.Login{
		Issuer:          o.Issuer,
		ClientID:        o.ClientID,
		Scopes:          o.Scopes,
		CABundle:        bundle,
		RequestAudience: o.RequestAudience,
		UpstreamName:    o.UpstreamName,
		UpstreamType:    o.UpstreamType,
		Flow:            flow,
		ListenPort:      o.ListenPort,
		SkipListen:      o.SkipListen,
		SkipBrowser:     o.SkipBrowser,
		Quiet:           quiet == "true",
		Cluster:         o.cluster(),
		Sessions:        &sessioncache.Cache{Path: o.SessionCache, Now: o.Plugin.Now},
		Terminal:        &ui.Terminal{In: o.Plugin.In, Out: o.Plugin.ErrOut, NoInput: o.Plugin.info.forbidsInput()},
		OpenBrowser:     o.OpenBrowser,
		Now:             o.Plugin.Now,
		Debugf:          o.Plugin.debugf,
		Getenv: func(name string) string {
			value, _ := o.LookupEnv(name)
			return value
		},
	}
	if o.noPlace != nil {
		o.login.NoPlace = o.noPlace()
	}
	return nil
}

// chooseFlow returns the requested flow, or the default for the type of a Supervisor's identity provider.
func chooseFlow(upstreamType, flow string) (oidclogin.Flow, error) {
	if !slices.Contains(oidclogin.UpstreamTypes(), upstreamType) {
		return "", fmt.Errorf(
			"--upstream-identity-provider-type value not recognized: %s (supported values: %s)",
			upstreamType,
			strings.Join(oidclogin.UpstreamTypes(), ", "),
		)
	}
	byPassword := upstreamType == "ldap" || upstreamType == "activedirectory"
	supported := oidclogin.Flows()
	if upstreamType == "github" { // it accepts no passwords
		supported = []string{string(oidclogin.Browser), string(oidclogin.DeviceCode)}
	}
	switch {
	case flow == "" && byPassword:
		return oidclogin.Password, nil
	case flow == "":
		return oidclogin.Browser, nil
	case slices.Contains(supported, flow):
		return oidclogin.Flow(flow), nil
	}
	return "", fmt.Errorf(
		"--upstream-identity-provider-flow (or %s) value not recognized for identity provider type %q: %s (supported "+
			"values: %s)",
		flowVariable,
		upstreamType,
		flow,
		strings.Join(supported, ", "),
	)
}

// ReadBundles concatenates the CA bundles of --ca-bundle (paths for read) and --ca-bundle-data (base64).
func ReadBundles(read func(path string) ([]byte, error), paths, data []string) ([]byte, error) {
	var bundles [][]byte
	for _, path := range paths {
		content, err := read(path)
		if err == nil {
			_, err = kubeconfig.CountCertificates(content)
		}
		if err != nil {
			return nil, ui.WithFileHint(fmt.Errorf("could not read --ca-bundle: %w", err), "certificates in PEM format")
		}
		bundles = append(bundles, content)
	}
	for _, text := range data {
		content, err := base64.StdEncoding.DecodeString(text)
		if err == nil {
			_, err = kubeconfig.CountCertificates(content)
		}
		if err != nil {
			return nil, ui.WithHint(
				ui.Usage(fmt.Errorf("could not read --ca-bundle-data: %w", err)),
				"use base64-encoded PEM certificates",
			)
		}
		bundles = append(bundles, content)
	}
	return bytes.Join(bundles, []byte("\n")), nil
}

// cluster returns the cluster's address for the page in the browser.
func (o *OIDCOptions) cluster() string {
	address := o.Plugin.concierge.Endpoint
	if cluster := o.Plugin.info.Spec.Cluster; cluster != nil {
		address = cluster.Server
	}
	return strings.TrimSuffix(strings.TrimPrefix(address, "https://"), "/")
}

// Run prints the credential.
func (o *OIDCOptions) Run(ctx context.Context) error { return o.Plugin.run(ctx, "", o.login) }
