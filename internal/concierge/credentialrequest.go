package concierge

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/satoken"
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

// Messages and a reason in the audit log.
const (
	auditFailed      = "TokenCredentialRequest Authentication Failed"
	auditError       = "TokenCredentialRequest Unexpected Error"
	auditUnsupported = "TokenCredentialRequest Unsupported UserInfo"
	unsupportedUser  = "unsupported value in userInfo returned by authenticator"
)

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

var _ rest.Creater = &credentialRequests{}

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
		virtual: newVirtual(defaultGroups.Login.Group, "TokenCredentialRequest", &loginv1alpha1.TokenCredentialRequest{},
			&loginv1alpha1.TokenCredentialRequestList{
				ListMeta: metav1.ListMeta{ResourceVersion: "0"}, Items: []loginv1alpha1.TokenCredentialRequest{},
			}),
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
	const rejected = "auth rejected by authenticator"
	var refusal *authenticator.Refusal
	switch {
	case errors.As(err, &refusal) && refusal.Reason != authenticator.ReasonIssuerAway:
		return c.failed(ctx, loginRefused, refusal.Message(), auditFailed,
			append(asked, "reason", rejected, "code", string(refusal.Reason), "err", refusal.Error()))
	case err != nil:
		how := loginFailed
		if errors.Is(err, authenticator.ErrNoSuchAuthenticator) {
			how = loginRefused // an unauthenticated client chooses the reference
		}
		return c.failed(ctx, how, whyNot(err, reference), auditError,
			append(asked, "reason", "authenticator returned an error", "err", err.Error()))
	case !authenticated || claimed == nil:
		return c.failed(ctx, loginRefused, "the authenticator rejects the token", auditFailed,
			append(asked, "reason", rejected))
	case spec.Strategy == string(configv1alpha1.StrategyServiceAccountToken):
		return c.exchangeForToken(ctx, claimed, reference, asked)
	}
	if err := checkCarriable(claimed); err != nil {
		return c.unsuitable(ctx, asked, err)
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
		return c.failed(ctx, loginFailed, "no certificate can be issued at the moment", auditError,
			append(asked, "reason", "failed to issue certificate", "err", err.Error()))
	}
	if size := base64.StdEncoding.DecodedLen(len(pair.CertPEM)); by == signedByAgent && size > maxCertificate {
		why := fmt.Sprintf(
			"the user and its %d groups need a certificate of about %d bytes; the impersonation proxy accepts "+
				"at most %d: use a bearer token", len(claimed.GetGroups()), size, maxCertificate,
		)
		return c.failed(ctx, loginRefused, why, auditUnsupported, append(asked, "reason", unsupportedUser, "err", why))
	}
	return c.succeeded(ctx, claimed, asked, loginv1alpha1.ClusterCredential{
		ExpirationTimestamp:   metav1.NewTime(pair.NotAfter.UTC()),
		ClientCertificateData: string(pair.CertPEM),
		ClientKeyData:         string(pair.KeyPEM),
	}, "signer", by)
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
		return c.unsuitable(ctx, asked, err)
	}
	issued, err := c.issueToken(ctx, claimed, reference)
	if err != nil {
		how := loginFailed
		if errors.Is(err, satoken.ErrOff) {
			how = loginRefused // the client has asked for it
		}
		return c.failed(ctx, how, whyNoToken(err), auditError,
			append(asked, "reason", "failed to issue a service account token", "err", err.Error()))
	}
	return c.succeeded(ctx, claimed, asked, loginv1alpha1.ClusterCredential{
		ExpirationTimestamp: metav1.NewTime(issued.Expiry.UTC()),
		Token:               issued.Token,
		RequestHeaders:      issued.Headers,
	}, "strategy", string(configv1alpha1.StrategyServiceAccountToken))
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

// unsuitable refuses a user whom an authenticator asserts. err must not contain the name.
func (c *credentialRequests) unsuitable(
	ctx context.Context, asked []any, err error,
) *loginv1alpha1.TokenCredentialRequest {
	return c.failed(ctx, loginRefused, "the authenticator asserts an invalid user: "+err.Error(), auditUnsupported,
		append(asked, "reason", unsupportedUser, "err", err.Error()))
}

// failed logs a failed login with facts, and returns the response. Clients show why to the user.
func (c *credentialRequests) failed(
	ctx context.Context, how loginResult, why, message string, facts []any,
) *loginv1alpha1.TokenCredentialRequest {
	c.audit.event(ctx, message, facts...)
	c.ended.note(how)
	warning.AddWarning(ctx, "", "login failed: "+why)
	return &loginv1alpha1.TokenCredentialRequest{
		Status: loginv1alpha1.TokenCredentialRequestStatus{Message: ptr.To(authenticationFailed)},
	}
}

// succeeded logs a login, and returns the response. by says in the audit log what issued the credential.
func (c *credentialRequests) succeeded(
	ctx context.Context, claimed user.Info, asked []any, credential loginv1alpha1.ClusterCredential, by ...any,
) *loginv1alpha1.TokenCredentialRequest {
	c.ended.note(loginDone)
	facts := append(append(asked, c.audit.names(claimed)...),
		"expires", credential.ExpirationTimestamp.Format(time.RFC3339))
	c.audit.event(ctx, "TokenCredentialRequest Authenticated User", append(facts, by...)...)
	return &loginv1alpha1.TokenCredentialRequest{
		Status: loginv1alpha1.TokenCredentialRequestStatus{Credential: &credential},
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

// auditLog logs the results of TokenCredentialRequests. Existing log queries rely on the messages and keys.
type auditLog struct {
	logger    klog.Logger
	showNames bool
}

func (a auditLog) event(ctx context.Context, message string, facts ...any) {
	facts = append([]any{
		"auditEvent", true,
		"auditID", audit.GetAuditIDTruncated(ctx),
		"sourceIPs", sourceIPs(ctx),
	}, facts...)
	a.logger.Info(message, facts...)
}

// names returns the username and groups of a user as log keys and values, redacted unless showNames is set.
func (a auditLog) names(who user.Info) []any {
	if a.showNames {
		return []any{"username", who.GetName(), "groups", who.GetGroups()}
	}
	return []any{"username", "redacted", "groups", fmt.Sprintf("redacted %d values", len(who.GetGroups()))}
}

// tokenID returns a hash that identifies a token in log lines without revealing it.
func tokenID(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
