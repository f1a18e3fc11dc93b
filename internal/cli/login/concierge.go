package login

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// concierge are the flags for the exchange of a token for a credential.
type concierge struct {
	Enabled           bool
	AuthenticatorType string
	AuthenticatorName string
	Endpoint          string
	CABundleData      string // base64 of PEM; empty means the system roots
	APIGroupSuffix    string
	Strategy          string // empty means the cluster's choice
	Identity          string // digest of the user that the kubeconfig impersonates
	UpdateKubeconfig  bool
}

func (c *concierge) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&c.Enabled, "enable-concierge", false, "exchange the token for a credential of the cluster")
	flags.StringVar(
		&c.AuthenticatorType,
		"concierge-authenticator-type",
		"",
		`type of the authenticator: "webhook" or "jwt"`,
	)
	flags.StringVar(&c.AuthenticatorName, "concierge-authenticator-name", "", "name of the authenticator")
	flags.StringVar(&c.Endpoint, "concierge-endpoint", "", "address at which to exchange the token (https://host[:port])")
	flags.StringVar(
		&c.CABundleData,
		"concierge-ca-bundle-data",
		"",
		"CA bundle of the endpoint, as base64-encoded PEM (default: the system roots)",
	)
	flags.StringVar(
		&c.APIGroupSuffix,
		"concierge-api-group-suffix",
		apis.DefaultGroupSuffix,
		"API group suffix of the installation",
	)
	flags.StringVar(
		&c.Strategy,
		"concierge-strategy",
		"",
		`"ServiceAccountToken" requests a service account token (default: the cluster's preference)`,
	)
	flags.StringVar(
		&c.Identity,
		"concierge-identity",
		"",
		"digest of the user and groups that the kubeconfig impersonates, to detect changes",
	)
	flags.BoolVar(
		&c.UpdateKubeconfig,
		"update-kubeconfig",
		false,
		"update the kubeconfig when your groups have changed (for one command, set "+updateVariable+"=true)",
	)
	flags.String("concierge-namespace", "", "no longer needed")
	// Older kubeconfigs have it. There is no warning, because every kubectl command would show it.
	flags.Lookup("concierge-namespace").Hidden = true
}

// exchange returns the exchange for the flags.
func (c *concierge) exchange() (*exchange, error) {
	if c.AuthenticatorName == "" {
		return nil, errors.New("authenticator name must not be empty")
	}
	kind, err := discovery.ParseAuthenticatorType(c.AuthenticatorType)
	if err != nil {
		return nil, err
	}
	if kind == "" {
		return nil, errors.New(`authenticator type must not be empty, supported values are "webhook" and "jwt"`)
	}
	if err = apis.ValidateGroupSuffix(c.APIGroupSuffix); err != nil {
		return nil, fmt.Errorf("invalid API group suffix: %w", err)
	}
	endpoint, err := parseEndpoint(c.Endpoint)
	if err != nil {
		return nil, err
	}
	bundle, err := base64.StdEncoding.DecodeString(c.CABundleData)
	if err != nil {
		return nil, fmt.Errorf("invalid CA bundle data: %w", err)
	}
	if len(bundle) > 0 {
		if _, err := kubeconfig.CountCertificates(bundle); err != nil {
			return nil, fmt.Errorf("invalid CA bundle data: %w", err)
		}
	}
	if c.Strategy != "" && c.Strategy != serviceAccountToken {
		return nil, fmt.Errorf("invalid strategy %q, the supported value is %q", c.Strategy, serviceAccountToken)
	}
	groups := apis.GroupsFor(c.APIGroupSuffix)
	return &exchange{
		strategy: c.Strategy,
		endpoint: endpoint,
		caBundle: bundle,
		groups:   groups,
		authenticator: corev1.TypedLocalObjectReference{
			APIGroup: &groups.Authentication.Group,
			Kind:     kind.Kind(),
			Name:     c.AuthenticatorName,
		},
	}, nil
}

func parseEndpoint(text string) (*url.URL, error) {
	if text == "" {
		return nil, errors.New("endpoint must not be empty")
	}
	endpoint, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("invalid endpoint URL: %w", err)
	}
	if endpoint.Scheme != "https" {
		return nil, fmt.Errorf("invalid endpoint scheme %q (must be \"https\")", endpoint.Scheme)
	}
	if endpoint.Host == "" {
		return nil, fmt.Errorf("invalid endpoint URL: %q has no host", text)
	}
	return endpoint, nil
}
