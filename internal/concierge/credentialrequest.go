package concierge

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// DefaultCredentialLife is the default lifetime of an issued client certificate.
const DefaultCredentialLife = 5 * time.Minute

// authenticationFailed is the message of every failed login, on which clients rely. A Warning header has the cause that
// the user may know; the audit log has the full cause.
const authenticationFailed = "authentication failed"

// TokenAuthenticator passes a token to the authenticator that a TokenCredentialRequest names. It returns false when the
// token is invalid, and an error when that could not be decided. The caller must not change the user.
type TokenAuthenticator interface {
	AuthenticateToken(
		ctx context.Context,
		authenticator corev1.TypedLocalObjectReference,
		token string,
	) (user.Info, bool, error)
}

// strategies are the valid values of spec.strategy of a TokenCredentialRequest.
var strategies = []string{
	string(configv1alpha1.StrategyKubeClusterSigningCertificate),
	string(configv1alpha1.StrategyImpersonationProxy),
	string(configv1alpha1.StrategyServiceAccountToken),
}

// maxCertificate is the maximum size in bytes of a certificate that the agent signs. Only the impersonation proxy
// accepts those, and it ends handshakes of more than 32 KiB.
const maxCertificate = 28 << 10

// credentialRequests serves TokenCredentialRequests.
type credentialRequests struct {
	virtual

	authenticator TokenAuthenticator
	issuers       issuers
	life          time.Duration // of certificates
	audit         auditLog
	ended         *loginResults // may be nil
}

var _ interface {
	rest.Storage
	rest.Creater
	rest.Lister
	rest.Scoper
	rest.CategoriesProvider
	rest.SingularNameProvider
} = &credentialRequests{}

func newCredentialRequests(
	authenticator TokenAuthenticator,
	issuers issuers,
	life time.Duration,
	audit auditLog,
) *credentialRequests {
	if life == 0 {
		life = DefaultCredentialLife
	}
	return &credentialRequests{
		virtual: newVirtual(
			defaultGroups.Login.Group,
			"TokenCredentialRequest",
			"tokencredentialrequests",
			"tokencredentialrequest",
			func() runtime.Object { return &loginv1alpha1.TokenCredentialRequest{} },
			func() runtime.Object {
				return &loginv1alpha1.TokenCredentialRequestList{
					ListMeta: metav1.ListMeta{ResourceVersion: "0"}, Items: []loginv1alpha1.TokenCredentialRequest{},
				}
			},
		),
		authenticator: authenticator,
		issuers:       issuers,
		life:          life,
		audit:         audit,
	}
}

// Create exchanges the token for a credential. A failed login is a response, not an error.
func (c *credentialRequests) Create(
	ctx context.Context,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	request, ok := obj.(*loginv1alpha1.TokenCredentialRequest)
	if !ok {
		return nil, apierrors.NewBadRequest("not a TokenCredentialRequest")
	}
	if request.Spec.Token == "" {
		return nil, c.invalid(request.Name, field.Required(field.NewPath("spec", "token", "value"), "token must be supplied"))
	}
	if strategy := request.Spec.Strategy; strategy != "" && !slices.Contains(strategies, strategy) {
		return nil, c.invalid(
			request.Name,
			field.NotSupported(field.NewPath("spec", "strategy"), bounded(strategy), strategies),
		)
	}
	if err := c.refuse(ctx, request.Name, options); err != nil {
		return nil, err
	}
	if validate != nil {
		withoutToken := request.DeepCopy()
		withoutToken.Spec.Token = ""
		if err := validate(ctx, withoutToken); err != nil {
			return nil, err
		}
	}
	return c.exchange(ctx, request.Spec), nil
}

func (c *credentialRequests) exchange(
	ctx context.Context,
	spec loginv1alpha1.TokenCredentialRequestSpec,
) *loginv1alpha1.TokenCredentialRequest {
	reference, token := spec.Authenticator, spec.Token
	c.audit.event(ctx, "TokenCredentialRequest Token Received", "tokenID", tokenID(token))
	asked := []any{
		"authenticator",
		map[string]any{
			"apiGroup": bounded(ptr.Deref(reference.APIGroup, "")),
			"kind":     bounded(reference.Kind),
			"name":     bounded(reference.Name),
		},
	}

	claimed, authenticated, err := c.authenticator.AuthenticateToken(ctx, reference, token)
	var refusal *authenticator.Refusal
	if errors.As(err, &refusal) && refusal.Reason != authenticator.ReasonIssuerAway {
		c.audit.event(ctx, "TokenCredentialRequest Authentication Failed",
			append(asked, "reason", "auth rejected by authenticator", "code", string(refusal.Reason), "err", refusal.Error())...)
		return c.failed(ctx, loginRefused, refusal.Message())
	}
	if err != nil {
		c.audit.event(
			ctx,
			"TokenCredentialRequest Unexpected Error",
			append(asked, "reason", "authenticator returned an error", "err", err.Error())...)
		if errors.Is(err, authenticator.ErrNoSuchAuthenticator) {
			return c.failed(ctx, loginRefused, whyNot(err, reference)) // an unauthenticated client chooses the reference
		}
		return c.failed(ctx, loginFailed, whyNot(err, reference))
	}
	if !authenticated || claimed == nil {
		c.audit.event(
			ctx,
			"TokenCredentialRequest Authentication Failed",
			append(asked, "reason", "auth rejected by authenticator")...)
		return c.failed(ctx, loginRefused, "the authenticator rejects the token")
	}
	if wantsToken(spec.Strategy) {
		return c.exchangeForToken(ctx, claimed, reference, asked)
	}
	if err := checkCarriable(claimed); err != nil {
		c.audit.event(
			ctx,
			"TokenCredentialRequest Unsupported UserInfo",
			append(asked, "reason", "unsupported value in userInfo returned by authenticator", "err", err.Error())...)
		return c.failed(ctx, loginRefused, unsuitableUser(err))
	}
	pair, by, err := c.issuers.issue(ctx, certs.ClientIdentity{
		Username:            claimed.GetName(),
		Groups:              claimed.GetGroups(),
		OrganizationalUnits: organizationalUnits(claimed.GetExtra()),
	}, c.life)
	if c.issuers.tokens != nil && errors.Is(err, signer.ErrNotLoaded) {
		return c.exchangeForToken(ctx, claimed, reference, asked) // fall back: there is no certificate to sign with
	}
	if err != nil {
		c.audit.event(
			ctx,
			"TokenCredentialRequest Unexpected Error",
			append(asked, "reason", "failed to issue certificate", "err", err.Error())...)
		return c.failed(ctx, loginFailed, "no certificate can be issued at the moment")
	}
	if size := base64.StdEncoding.DecodedLen(len(pair.CertPEM)); by == signedByAgent && size > maxCertificate {
		why := fmt.Sprintf(
			"the user and its %d groups need a certificate of about %d bytes; the impersonation proxy accepts %d: "+
				"use a bearer token",
			len(claimed.GetGroups()),
			size,
			maxCertificate,
		)
		c.audit.event(ctx, "TokenCredentialRequest Unsupported UserInfo",
			append(asked, "reason", "unsupported value in userInfo returned by authenticator", "err", why)...)
		return c.failed(ctx, loginRefused, why)
	}
	c.ended.note(loginDone)
	expires := metav1.NewTime(pair.NotAfter.UTC())
	c.audit.event(ctx, "TokenCredentialRequest Authenticated User",
		append(append(asked, c.audit.names(claimed)...), "expires", expires.Format(time.RFC3339), "signer", by)...)
	return &loginv1alpha1.TokenCredentialRequest{
		Status: loginv1alpha1.TokenCredentialRequestStatus{
			Credential: &loginv1alpha1.ClusterCredential{
				ExpirationTimestamp:   expires,
				ClientCertificateData: string(pair.CertPEM),
				ClientKeyData:         string(pair.KeyPEM),
			},
		},
	}
}

// whyNot returns the part of an authenticator's error that the user may know.
func whyNot(err error, reference corev1.TypedLocalObjectReference) string {
	named := fmt.Sprintf("%q of kind %q", bounded(reference.Name), bounded(reference.Kind))
	var refusal *authenticator.Refusal
	switch {
	case errors.Is(err, authenticator.ErrNoSuchAuthenticator):
		return "there is no authenticator " + named
	case errors.Is(err, authenticator.ErrNotReady):
		return "authenticator " + named + " is not ready"
	case errors.As(err, &refusal):
		return refusal.Message()
	}
	return "authenticator " + named + " does not respond"
}

// unsuitableUser says why a user whom an authenticator asserts may not log in. err must not contain the name.
func unsuitableUser(err error) string {
	return "the authenticator asserts an invalid user: " + err.Error()
}

// failed returns the response to a failed login. Clients show the warning to the user.
func (c *credentialRequests) failed(
	ctx context.Context, how loginResult, why string,
) *loginv1alpha1.TokenCredentialRequest {
	c.ended.note(how)
	warning.AddWarning(ctx, "", "login failed: "+why)
	return &loginv1alpha1.TokenCredentialRequest{
		Status: loginv1alpha1.TokenCredentialRequestStatus{Message: ptr.To(authenticationFailed)},
	}
}

// bounded truncates input of unauthenticated clients for logs and messages.
func bounded(text string) string { return logs.Truncate(text, 253) } // the longest name in Kubernetes

// checkCarriable returns an error when a client certificate cannot express the user.
func checkCarriable(claimed user.Info) error {
	// A client certificate cannot contain a UID, and without it would be valid for every user of that name.
	if claimed.GetUID() != "" {
		return errors.New("UIDs are not supported")
	}
	return authenticator.CheckUser(claimed)
}

// organizationalUnits encodes the extras for a certificate as sorted "key=value", for auditing tools.
func organizationalUnits(extra map[string][]string) []string {
	var units []string
	for key, values := range extra {
		for _, value := range values {
			units = append(units, key+"="+value)
		}
	}
	slices.Sort(units)
	return units
}
