// Package identity authenticates and authorizes requests as the API server does: authentication, nested impersonation,
// and authorization by SubjectAccessReview.
//
// Reviews are decisions of the API server, cached for a short time. Equal concurrent questions share one review
// (reviews.go). Package clienttrust verifies client certificates.
//
// Locks: reviews.mu; no other lock is taken while it is held.
package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	tokenSuccessTTL = 10 * time.Second
	tokenFailureTTL = time.Second
	maxTokens       = 4096
	// MaxToken limits the size of a token in bytes, and so the work that unauthenticated clients can cause. For scale:
	// a thousand groups with names of 60 characters take 86 kB.
	MaxToken = 128 << 10
)

// NewAuthenticator tries the credentials that the API server accepts, in its order: front proxy, client certificate,
// bearer token, token in the WebSocket subprotocol. A certificate takes precedence over a token. A request without
// credentials is anonymous. The reasons of refusals are logged with refused.
func NewAuthenticator(
	trusted *clienttrust.Store,
	tokens authenticator.Token,
	anonymous authenticator.Request,
	verifications *flowcontrol.Controller,
	refused *logs.Sampler,
) authenticator.Request {
	certificates, bearers := &clientCertificates{trusted, verifications}, clientTokens(tokens)
	presented := union.New(
		authenticator.RequestFunc(certificates.frontProxy),
		authenticator.RequestFunc(certificates.user),
		bearertoken.New(bearers),
		websocket.NewProtocolAuthenticator(bearers),
	)
	// Invalid credentials get 401; they never fall back to anonymous.
	all := union.NewFailOnError(namedUsers(presented), anonymous)
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := all.AuthenticateRequest(req)
		if err != nil {
			// The API server's filter would log each error, and unauthenticated clients can cause any number of them.
			// Without an error and a user, the response is the same.
			refused.Info(klog.FromContext(req.Context()), "reason", request.Bounded(err.Error()))
			return nil, false, nil //nolint:nilerr // see above
		}
		return response, ok, nil
	})
}

// clientTokens refuses tokens that are too long, and notes when the token's authenticator is unavailable.
func clientTokens(next authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if len(token) > MaxToken {
			return nil, false, fmt.Errorf("the bearer token has %d bytes; the limit is %d", len(token), MaxToken)
		}
		response, ok, err := next.AuthenticateToken(ctx, token)
		noteUnavailable(ctx, err)
		return response, ok, err
	})
}

// noteUnavailable records that authentication was not decided, so that the client does not get 401.
func noteUnavailable(ctx context.Context, err error) {
	if state := request.From(ctx); state != nil && request.IsUnavailable(err) {
		state.Unavailable = err
	}
}

// namedUsers refuses users with an empty or blank name.
func namedUsers(next authenticator.Request) authenticator.Request {
	next = group.NewAuthenticatedGroupAdder(next)
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := next.AuthenticateRequest(req)
		if ok && err == nil && strings.TrimSpace(response.User.GetName()) == "" {
			return nil, false, errors.New("the credential names no user")
		}
		return response, ok, err
	})
}

// Unauthenticated responds to requests that no authenticator accepted: with 401, or with 503 when the authenticator was
// unavailable. Clients discard their credential on 401, so an outage must not cause it.
func Unauthenticated(s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if state := request.From(req.Context()); state.Unavailable != nil {
			message := "cannot reach the API server to authenticate the request"
			if _, asked := errors.AsType[*request.UnavailableError](state.Unavailable); !asked {
				message = "the bearer token's authenticator cannot be reached"
			}
			request.WriteStatus(w, req, s, request.StatusUndecided(req.Context(), state.Unavailable, message))
			return
		}
		request.WriteStatus(w, req, s, apierrors.NewUnauthorized("Unauthorized"))
	})
}

// TokenReviewer authenticates bearer tokens by TokenReview. It stores no tokens: results are cached by a salted hash of
// the token, and those of invalid tokens separately.
type TokenReviewer struct {
	reviews[*tokenResponse]
	salt [sha256.Size]byte
}

// tokenResponse is the result of a TokenReview.
type tokenResponse struct {
	response *authenticator.Response // nil when the token is not valid
	err      error                   // why the token is not valid, if the API server gave a reason
}

// NewTokenReviewer returns a TokenReviewer with empty caches.
func NewTokenReviewer(post PostReview, flow *flowcontrol.Controller, clk clock.PassiveClock) *TokenReviewer {
	r := &TokenReviewer{
		reviews: newReviews[*tokenResponse](post, flow, flowcontrol.TokenReview, clk, maxTokens, maxTokens),
	}
	_, _ = rand.Read(r.salt[:]) // it never fails
	return r
}

// AuthenticateToken implements authenticator.Token.
func (r *TokenReviewer) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	key := questionKey(sha256.Sum256(append(r.salt[:len(r.salt):len(r.salt)], token...)))
	result, err := r.ask(ctx, key, func(ctx context.Context) (*tokenResponse, error) { return r.review(ctx, key, token) })
	if err != nil {
		return nil, false, err
	}
	return result.response, result.response != nil, result.err
}

func (r *TokenReviewer) review(ctx context.Context, key questionKey, token string) (*tokenResponse, error) {
	asked := r.clock.Now()
	result := &authenticationv1.TokenReview{}
	spec := authenticationv1.TokenReviewSpec{Token: token}
	err := r.post(request.Unlogged(ctx), &authenticationv1.TokenReview{Spec: spec}, result)
	r.Counts.count(err == nil && result.Status.Authenticated, err)
	if err != nil {
		return nil, request.AsUnavailable("reviewing the token", err)
	}
	outcome := &tokenResponse{}
	if !result.Status.Authenticated {
		if result.Status.Error != "" {
			// The token's authenticator wrote this text, which may contain the token.
			said := strings.ReplaceAll(result.Status.Error, token, "[token]")
			outcome.err = errors.New("token review error: " + request.Bounded(said))
		}
		r.apart.Add(key, outcome, tokenFailureTTL-r.clock.Since(asked))
		return outcome, nil
	}
	said := result.Status.User
	who := &user.DefaultInfo{Name: said.Username, UID: said.UID, Groups: said.Groups}
	if len(said.Extra) > 0 {
		who.Extra = make(map[string][]string, len(said.Extra))
		for key, values := range said.Extra {
			who.Extra[key] = values
		}
	}
	outcome.response = &authenticator.Response{User: who}
	r.kept.Add(key, outcome, tokenSuccessTTL-r.clock.Since(asked))
	return outcome, nil
}
