package discovery

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

// AuthenticatorType is the type of an authenticator, as written on the command line.
type AuthenticatorType string

// The types of authenticators.
const (
	Webhook AuthenticatorType = "webhook"
	JWT     AuthenticatorType = "jwt"
)

// ParseAuthenticatorType parses an authenticator type, ignoring case. Empty stays empty.
func ParseAuthenticatorType(text string) (AuthenticatorType, error) {
	switch t := AuthenticatorType(strings.ToLower(text)); t {
	case "", Webhook, JWT:
		return t, nil
	}
	return "", fmt.Errorf("invalid authenticator type %q, supported values are %q and %q", text, Webhook, JWT)
}

// Kind returns the API kind of the type.
func (t AuthenticatorType) Kind() string {
	if t == JWT {
		return "JWTAuthenticator"
	}
	return "WebhookAuthenticator"
}

func (t AuthenticatorType) resource() string { return strings.ToLower(t.Kind()) + "s" }

// Authenticator is one WebhookAuthenticator or JWTAuthenticator.
type Authenticator struct {
	Type    AuthenticatorType
	Name    string
	Phase   authenticationv1alpha1.AuthenticatorPhase
	Problem string                                   // message of the condition Ready if that is false
	JWT     *authenticationv1alpha1.JWTAuthenticator // set for type JWT
}

// Authenticator returns the only authenticator of kind and name; each may be empty, which means any. It returns
// ErrNotFound for none, a *SeveralError for several, and ErrNotInstalled if the cluster does not serve the API.
func (c *Client) Authenticator(ctx context.Context, kind AuthenticatorType, name string) (*Authenticator, error) {
	kinds := []AuthenticatorType{Webhook, JWT}
	if kind != "" {
		kinds = []AuthenticatorType{kind}
	}
	var found []Authenticator
	for _, k := range kinds {
		some, err := c.authenticators(ctx, k, name)
		switch {
		case err != nil && name != "" && errors.Is(err, ErrNotFound):
			// An authenticator of the other kind may have this name; if not, the error lists the existing ones.
		case err != nil:
			return nil, err
		}
		found = append(found, some...)
	}
	switch len(found) {
	case 0:
		return nil, c.noAuthenticator(ctx, kind, name)
	case 1:
		return &found[0], nil
	}
	several := &SeveralError{
		Kind: "authenticator",
		hint: "choose one with --concierge-authenticator-type and --concierge-authenticator-name",
	}
	for _, a := range found {
		several.Names = append(several.Names, string(a.Type)+"/"+a.Name)
	}
	return nil, several
}

// Authenticators returns all authenticators of the cluster, webhooks first.
func (c *Client) Authenticators(ctx context.Context) ([]Authenticator, error) {
	webhooks, err := c.authenticators(ctx, Webhook, "")
	if err != nil {
		return nil, err
	}
	jwts, err := c.authenticators(ctx, JWT, "")
	if err != nil {
		return nil, err
	}
	return append(webhooks, jwts...), nil
}

func (c *Client) noAuthenticator(ctx context.Context, kind AuthenticatorType, name string) error {
	what := "authenticator"
	if kind != "" {
		what = kind.Kind()
	}
	if name == "" {
		return &missing{what: what}
	}
	others, err := c.Authenticators(ctx)
	if err != nil {
		others = nil // used only for the hint
	}
	return &wrongNameError{what: what, name: name, others: others}
}

// wrongNameError means that the cluster has no authenticator with the given name.
type wrongNameError struct {
	what, name string
	others     []Authenticator
}

func (e *wrongNameError) Error() string {
	return fmt.Sprintf("reading %s %q: not found", e.what, e.name)
}
func (e *wrongNameError) Is(target error) bool { return target == ErrNotFound }

// Hint lists the flags for the existing authenticators.
func (e *wrongNameError) Hint() string {
	if len(e.others) == 0 {
		return ""
	}
	flags := make([]string, 0, len(e.others))
	for _, other := range e.others {
		flags = append(
			flags,
			fmt.Sprintf("--concierge-authenticator-type %s --concierge-authenticator-name %s", other.Type, other.Name),
		)
	}
	return "the cluster has: " + strings.Join(flags, "; ")
}

// missing means that the cluster has no object of a kind.
type missing struct{ what string }

func (e *missing) Error() string        { return fmt.Sprintf("no %s in the cluster", e.what) }
func (e *missing) Is(target error) bool { return target == ErrNotFound }
func (e *missing) Hint() string {
	return "create a WebhookAuthenticator or a JWTAuthenticator first"
}

// authenticators returns the authenticators of a kind: all of them, or the one called name.
func (c *Client) authenticators(ctx context.Context, kind AuthenticatorType, name string) ([]Authenticator, error) {
	op := operation{verb: "list", resource: c.groups.Authentication.WithResource(kind.resource())}
	if name != "" {
		op.verb, op.name = "get", name
	}
	var found []Authenticator
	switch {
	case kind == JWT && name != "":
		var jwt authenticationv1alpha1.JWTAuthenticator
		if err := c.get(ctx, op, &jwt); err != nil {
			return nil, err
		}
		found = append(found, fromJWT(&jwt))
	case kind == JWT:
		var list authenticationv1alpha1.JWTAuthenticatorList
		if err := c.get(ctx, op, &list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			found = append(found, fromJWT(&list.Items[i]))
		}
	case name != "":
		var webhook authenticationv1alpha1.WebhookAuthenticator
		if err := c.get(ctx, op, &webhook); err != nil {
			return nil, err
		}
		found = append(found, fromWebhook(&webhook))
	default:
		var list authenticationv1alpha1.WebhookAuthenticatorList
		if err := c.get(ctx, op, &list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			found = append(found, fromWebhook(&list.Items[i]))
		}
	}
	return found, nil
}

func fromJWT(jwt *authenticationv1alpha1.JWTAuthenticator) Authenticator {
	a := Authenticator{Type: JWT, Name: jwt.Name, Phase: jwt.Status.Phase, JWT: jwt}
	for _, condition := range jwt.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "False" {
			a.Problem = condition.Message
		}
	}
	return a
}

func fromWebhook(webhook *authenticationv1alpha1.WebhookAuthenticator) Authenticator {
	a := Authenticator{Type: Webhook, Name: webhook.Name, Phase: webhook.Status.Phase}
	for _, condition := range webhook.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "False" {
			a.Problem = condition.Message
		}
	}
	return a
}

// AuthenticatorCABundle returns the CA bundle (PEM) of an authenticator's spec.tls: inline, or from a Secret or
// ConfigMap in the agent's namespace. It returns nil if there is none, which means the system roots.
func (c *Client) AuthenticatorCABundle(ctx context.Context, tls *authenticationv1alpha1.TLSSpec) ([]byte, error) {
	switch {
	case tls == nil:
		return nil, nil
	case tls.CertificateAuthorityData != "":
		bundle, err := base64.StdEncoding.DecodeString(tls.CertificateAuthorityData)
		if err != nil {
			return nil, fmt.Errorf("decoding spec.tls.certificateAuthorityData: %w", err)
		}
		return bundle, nil
	case tls.CertificateAuthorityDataSource == nil:
		return nil, nil
	}
	source := tls.CertificateAuthorityDataSource
	namespace, err := c.AgentNamespace(ctx)
	if err != nil {
		return nil, err
	}
	var value []byte
	var known bool
	switch source.Kind {
	case authenticationv1alpha1.CertificateAuthorityDataSourceKindSecret:
		secret, err := c.Secret(ctx, namespace, source.Name)
		if err != nil {
			return nil, err
		}
		value, known = secret.Data[source.Key]
	case authenticationv1alpha1.CertificateAuthorityDataSourceKindConfigMap:
		configMap, err := c.ConfigMap(ctx, namespace, source.Name)
		if err != nil {
			return nil, err
		}
		var text string
		text, known = configMap.Data[source.Key]
		value = []byte(text)
	default:
		return nil, fmt.Errorf(
			"unknown kind %q in spec.tls.certificateAuthorityDataSource, supported values are \"Secret\" and \"ConfigMap\"",
			source.Kind,
		)
	}
	where := fmt.Sprintf("key %q of %s \"%s/%s\"", source.Key, source.Kind, namespace, source.Name)
	if !known {
		return nil, fmt.Errorf("%s does not exist", where)
	}
	if len(value) == 0 {
		return nil, fmt.Errorf("%s is empty", where)
	}
	return value, nil
}
