package concierge

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/satoken"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
)

// UserTokens issues service account tokens. It returns satoken.ErrOff while the strategy is off.
type UserTokens interface {
	Issue(ctx context.Context, user satoken.Identity) (*satoken.Credential, error)
}

// wantsToken reports whether the client asks for a service account token.
func wantsToken(strategy string) bool {
	return strategy == string(configv1alpha1.StrategyServiceAccountToken)
}

// exchangeForToken returns the service account token of an authenticated user. asked describes the request in the audit
// log.
func (c *credentialRequests) exchangeForToken(
	ctx context.Context,
	claimed user.Info,
	reference corev1.TypedLocalObjectReference,
	asked []any,
) *loginv1alpha1.TokenCredentialRequest {
	// Unlike a certificate, headers can express a UID.
	if err := authenticator.CheckUser(claimed); err != nil {
		c.audit.event(
			ctx,
			"TokenCredentialRequest Unsupported UserInfo",
			append(asked, "reason", "unsupported value in userInfo returned by authenticator", "err", err.Error())...)
		return c.failed(ctx, loginRefused, unsuitableUser(err))
	}
	issued, err := c.issueToken(ctx, claimed, reference)
	if err != nil {
		c.audit.event(
			ctx,
			"TokenCredentialRequest Unexpected Error",
			append(asked, "reason", "failed to issue a service account token", "err", err.Error())...)
		if errors.Is(err, satoken.ErrOff) {
			return c.failed(ctx, loginRefused, whyNoToken(err)) // the client has asked for it
		}
		return c.failed(ctx, loginFailed, whyNoToken(err))
	}
	c.ended.note(loginDone)
	expires := metav1.NewTime(issued.Expiry.UTC())
	c.audit.event(ctx, "TokenCredentialRequest Authenticated User", append(append(asked, c.audit.names(claimed)...),
		"expires", expires.Format(time.RFC3339), "strategy", string(configv1alpha1.StrategyServiceAccountToken))...)
	return &loginv1alpha1.TokenCredentialRequest{
		Status: loginv1alpha1.TokenCredentialRequestStatus{
			Credential: &loginv1alpha1.ClusterCredential{
				ExpirationTimestamp: expires,
				Token:               issued.Token,
				RequestHeaders:      issued.Headers,
			},
		},
	}
}

func (c *credentialRequests) issueToken(
	ctx context.Context,
	claimed user.Info,
	reference corev1.TypedLocalObjectReference,
) (*satoken.Credential, error) {
	if c.issuers.tokens == nil {
		return nil, satoken.ErrOff
	}
	return c.issuers.tokens.Issue(ctx, satoken.Identity{
		Authenticator: reference.Kind + "/" + reference.Name,
		Username:      claimed.GetName(),
		UID:           claimed.GetUID(),
		Groups:        claimed.GetGroups(),
		Extra:         claimed.GetExtra(),
	})
}

// whyNoToken returns the part of an issueToken error that the user may know.
func whyNoToken(err error) string {
	switch {
	case errors.Is(err, satoken.ErrOff):
		return satoken.ErrOff.Error()
	case errors.Is(err, satoken.ErrFull):
		return satoken.ErrFull.Error()
	}
	return "no service account token can be issued at the moment"
}
