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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// ReviewTimeout is how long the API server may take to answer a review.
	ReviewTimeout   = 10 * time.Second
	tokenSuccessTTL = 10 * time.Second
	tokenFailureTTL = time.Second
	maxTokens       = 4096
	// MaxToken is how many bytes a token may have, so that strangers cannot have much reviewed at a time. A thousand groups
	// with names of 60 characters make 86 kB.
	MaxToken = 128 << 10
)

// NewAuthenticator tries the credentials that the API server takes, in the API server's order: front proxy, client
// certificate, bearer token, token in the websocket subprotocol. A request without any credential is anonymous. So a
// certificate wins over a token. Why a credential is refused goes to the log by refused.
func NewAuthenticator(
	trusted *clienttrust.Store,
	tokens authenticator.Token,
	anonymous authenticator.Request,
	verifications *admission.Admission,
	refused *logs.Sampler,
) authenticator.Request {
	kept := presentedTokens{tokens}
	presented := union.New(
		&frontProxyAuthenticator{trust: trusted, work: verifications},
		&certificateAuthenticator{trust: trusted, work: verifications},
		bearertoken.New(kept),
		websocket.NewProtocolAuthenticator(kept),
	)
	// A client whose credential is not valid must get 401, and not become anonymous: hence fail on error.
	return quiet{union.NewFailOnError(namedUsers{group.NewAuthenticatedGroupAdder(presented)}, anonymous), refused}
}

// quiet logs samples of the reasons why credentials are refused. The filter of the API server would log each of them
// as an error, and clients without credentials can cause as many as they like.
type quiet struct {
	authenticator.Request
	refused *logs.Sampler
}

func (a quiet) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := a.Request.AuthenticateRequest(req)
	if err != nil {
		a.refused.Info(klog.FromContext(req.Context()), "reason", request.Bounded(err.Error()))
		return nil, false, nil //nolint:nilerr // without an error and without a user, the answer is the same
	}
	return response, ok, nil
}

// OtherTokens are bearer tokens that the cluster alone does not know. What vouches for them may be away, as the API
// server may.
type OtherTokens struct {
	authenticator.Token
}

// AuthenticateToken implements authenticator.Token.
func (o OtherTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := o.Token.AuthenticateToken(ctx, token)
	if !ok {
		noteUnavailable(ctx, err)
	}
	return response, ok, err
}

// namedUsers refuses users whose name is empty or blank, whatever authenticator accepted them.
type namedUsers struct {
	authenticator.Request
}

func (a namedUsers) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := a.Request.AuthenticateRequest(req)
	if ok && err == nil && strings.TrimSpace(response.User.GetName()) == "" {
		return nil, false, errors.New("the credential names no user")
	}
	return response, ok, err
}

// presentedTokens refuses tokens that are too long.
type presentedTokens struct {
	authenticator.Token
}

func (p presentedTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if len(token) > MaxToken {
		return nil, false, fmt.Errorf("the bearer token has %d bytes, and may have %d", len(token), MaxToken)
	}
	return p.Token.AuthenticateToken(ctx, token)
}

// Unauthenticated answers requests that no authenticator accepted. The answer is 401, or 503 when the API server
// could not be asked: a client that gets 401 throws its credential away, and an outage is no reason for that.
func Unauthenticated(s runtime.NegotiatedSerializer) http.Handler {
	unauthorized := filters.Unauthorized(s)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if state := request.From(req.Context()); state.Unavailable != nil {
			message := "the API server cannot be reached to authenticate the request"
			if _, asked := errors.AsType[*request.UnavailableError](state.Unavailable); !asked {
				message = "the authenticator of the bearer token cannot be reached"
			}
			request.WriteStatus(w, req, s, request.StatusUnanswered(req.Context(), state.Unavailable, message))
			return
		}
		unauthorized.ServeHTTP(w, req)
	})
}

// TokenReviewer authenticates bearer tokens by TokenReview. Its cache holds no tokens: answers are kept under a keyed
// hash of the token. Requests on one connection with the same token that come at the same time cause one review.
type TokenReviewer struct {
	post  PostReview
	clock clock.PassiveClock
	salt  [sha256.Size]byte
	cache *cache.LRUExpireCache // *tokenAnswer by the keyed hash of the token
	// refused is the same for tokens that are no good. It is apart, so that a flood of them makes no user be asked about
	// again.
	refused *cache.LRUExpireCache
	flights reviewFlights[*tokenAnswer]
	Counts  ReviewCounts
}

// tokenAnswer is what the API server said about a token.
type tokenAnswer struct {
	response *authenticator.Response // nil when the token is not valid
	err      error                   // why the token is not valid, if the API server gave a reason
}

// NewTokenReviewer returns a reviewer that has no answers yet.
func NewTokenReviewer(post PostReview, turns *admission.Admission, clk clock.PassiveClock) *TokenReviewer {
	r := &TokenReviewer{
		post:    post,
		clock:   clk,
		cache:   cache.NewLRUExpireCacheWithClock(maxTokens, clk),
		refused: cache.NewLRUExpireCacheWithClock(maxTokens, clk),
		flights: reviewFlights[*tokenAnswer]{admission: turns, kind: admission.TokenReview},
	}
	_, _ = rand.Read(r.salt[:]) // it never fails
	return r
}

// AuthenticateToken implements authenticator.Token.
func (r *TokenReviewer) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	answer, err := r.answer(ctx, token)
	if err != nil {
		noteUnavailable(ctx, err)
		return nil, false, err
	}
	return answer.response, answer.response != nil, answer.err
}

// Kept is how many answers are kept and have not expired.
func (r *TokenReviewer) Kept() int { return len(r.cache.Keys()) + len(r.refused.Keys()) }

// noteUnavailable notes that authentication was not decided, so that the client does not get a 401.
func noteUnavailable(ctx context.Context, err error) {
	if state := request.From(ctx); state != nil && request.IsUnavailable(err) {
		state.Unavailable = err
	}
}

func (r *TokenReviewer) answer(ctx context.Context, token string) (*tokenAnswer, error) {
	key := sha256.Sum256(append(r.salt[:len(r.salt):len(r.salt)], token...))
	if answer, ok := r.known(key); ok {
		r.Counts.Hits.Add(1)
		return answer, nil
	}
	r.Counts.Misses.Add(1)
	flight, err := r.flights.ask(ctx, key, func(ctx context.Context) (*tokenAnswer, error) {
		if answer, ok := r.known(key); ok { // it was reviewed in between
			return answer, nil
		}
		started := r.clock.Now()
		answer, err := r.review(ctx, token)
		if err != nil {
			return nil, err
		}
		if answer.response != nil {
			r.cache.Add(key, answer, tokenSuccessTTL-r.clock.Since(started))
		} else {
			r.refused.Add(key, answer, tokenFailureTTL-r.clock.Since(started))
		}
		return answer, nil
	})
	if err != nil {
		return nil, err
	}
	return flight.wait(ctx)
}

// known returns the answer about a token that was reviewed recently.
func (r *TokenReviewer) known(key [sha256.Size]byte) (*tokenAnswer, bool) {
	found, ok := r.cache.Get(key)
	if !ok {
		found, ok = r.refused.Get(key)
	}
	if !ok {
		return nil, false
	}
	return found.(*tokenAnswer), true
}

func (r *TokenReviewer) review(ctx context.Context, token string) (*tokenAnswer, error) {
	review, result := &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, &authenticationv1.TokenReview{}
	err := r.post(request.Unlogged(ctx), review, result)
	r.Counts.answered(err == nil && result.Status.Authenticated, err)
	if err != nil {
		return nil, request.AsUnavailable("reviewing the token", err)
	}
	if !result.Status.Authenticated {
		answer := &tokenAnswer{}
		if result.Status.Error != "" {
			// The token's authenticator wrote this text and may have put the token into it.
			said := strings.ReplaceAll(result.Status.Error, token, "[token]")
			answer.err = errors.New("the token review says: " + request.Bounded(said))
		}
		return answer, nil
	}
	identity := &user.DefaultInfo{
		Name:   result.Status.User.Username,
		UID:    result.Status.User.UID,
		Groups: result.Status.User.Groups,
	}
	if len(result.Status.User.Extra) > 0 {
		identity.Extra = make(map[string][]string, len(result.Status.User.Extra))
		for key, values := range result.Status.User.Extra {
			identity.Extra[key] = values
		}
	}
	return &tokenAnswer{response: &authenticator.Response{User: identity}}, nil
}
