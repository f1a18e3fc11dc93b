package discovery

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
		// An authenticator of the other kind may have this name; if not, the error lists the existing ones.
		if err != nil && (name == "" || !errors.Is(err, ErrNotFound)) {
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
	wrong := &failure{doing: fmt.Sprintf("reading %s %q", what, name), kind: ErrNotFound}
	others, err := c.Authenticators(ctx)
	if err != nil || len(others) == 0 {
		return wrong // without a hint
	}
	flags := make([]string, 0, len(others))
	for _, other := range others {
		flags = append(
			flags,
			fmt.Sprintf("--concierge-authenticator-type %s --concierge-authenticator-name %s", other.Type, other.Name),
		)
	}
	wrong.hint = "the cluster has: " + strings.Join(flags, "; ")
	return wrong
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
	var jwts authenticationv1alpha1.JWTAuthenticatorList
	var webhooks authenticationv1alpha1.WebhookAuthenticatorList
	var into runtime.Object
	switch {
	case kind == JWT && name != "":
		jwts.Items = make([]authenticationv1alpha1.JWTAuthenticator, 1)
		into = &jwts.Items[0]
	case kind == JWT:
		into = &jwts
	case name != "":
		webhooks.Items = make([]authenticationv1alpha1.WebhookAuthenticator, 1)
		into = &webhooks.Items[0]
	default:
		into = &webhooks
	}
	if err := c.request(op).Do(ctx).Into(into); err != nil {
		return nil, c.explain(ctx, op, err)
	}
	var found []Authenticator
	for i := range jwts.Items {
		a, status := &jwts.Items[i], &jwts.Items[i].Status
		found = append(found, Authenticator{JWT, a.Name, status.Phase, problem(status.Conditions), a})
	}
	for i := range webhooks.Items {
		a, status := &webhooks.Items[i], &webhooks.Items[i].Status
		found = append(found, Authenticator{Webhook, a.Name, status.Phase, problem(status.Conditions), nil})
	}
	return found, nil
}

// problem returns the message of the condition Ready if that is false.
func problem(conditions []metav1.Condition) string {
	if ready := meta.FindStatusCondition(conditions, "Ready"); ready != nil && ready.Status == metav1.ConditionFalse {
		return ready.Message
	}
	return ""
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
