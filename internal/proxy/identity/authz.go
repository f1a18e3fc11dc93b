package identity

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// DecisionMadeBy ends the reason of each decision.
	DecisionMadeBy = "decision made by impersonation-proxy.concierge.pinniped.dev"
	maxDecisions   = 16384
	// maxStrangers is how many decisions are kept about clients without a user.
	maxStrangers = 1024
)

var errNotAuthorizable = errors.New("the request could not be authorized")

// decision is the answer to one SubjectAccessReview.
type decision struct {
	verdict authorizer.Decision
	reason  string
	// alone says of a yes that it answers no other question than its own, because a part of it was denied.
	alone bool
}

// AccessReviewer authorizes by SubjectAccessReview. How long an answer is kept is counted from the moment at which the API
// server was asked. Answers about clients without a user are kept apart.
type AccessReviewer struct {
	reviews[decision]
	allowTTL, denyTTL time.Duration

	widening  sync.Mutex
	interests *cache.LRUExpireCache // interest by the key of a wider question; used under widening, as is the writing of answers
}

// NewAccessReviewer returns a reviewer that has no answers yet.
func NewAccessReviewer(
	post PostReview, turns *admission.Admission, clk clock.PassiveClock, allowTTL, denyTTL time.Duration,
) *AccessReviewer {
	return &AccessReviewer{
		reviews:   newReviews[decision](post, turns, admission.AccessReview, clk, maxDecisions, maxStrangers),
		allowTTL:  allowTTL,
		denyTTL:   denyTTL,
		interests: cache.NewLRUExpireCacheWithClock(maxWider, clk),
	}
}

// Authorize implements authorizer.UnconditionalAuthorizer for nested impersonation, about which the API server is asked
// exactly. The reason that it returns always names this proxy.
func (r *AccessReviewer) Authorize(
	ctx context.Context, attributes authorizer.Attributes,
) (authorizer.Decision, string, error) {
	return r.decide(ctx, attributes, false)
}

// decide returns the decision, with a reason that always names this proxy. A yes to a wider question counts when widen
// is true.
func (r *AccessReviewer) decide(
	ctx context.Context, attributes authorizer.Attributes, widen bool,
) (authorizer.Decision, string, error) {
	answer, err := r.ask(ctx, attributes, widen)
	if answer.reason != "" {
		answer.reason += ", "
	}
	return answer.verdict, answer.reason + DecisionMadeBy, err
}

func (r *AccessReviewer) ask(ctx context.Context, attributes authorizer.Attributes, widen bool) (decision, error) {
	who := attributes.GetUser()
	switch {
	case who == nil:
		return decision{verdict: authorizer.DecisionDeny}, errors.New("no user to authorize")
	case attributes.GetVerb() == "":
		return decision{verdict: authorizer.DecisionDeny, reason: "invalid verb"}, nil
	case slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup):
		return decision{verdict: authorizer.DecisionAllow}, nil
	case !attributes.IsResourceRequest() && slices.Contains(healthPaths[:], attributes.GetPath()):
		return decision{verdict: authorizer.DecisionAllow}, nil
	}
	q, err := newQuestion(attributes)
	if err != nil {
		return decision{verdict: authorizer.DecisionDeny}, err
	}
	q.mayWiden = widen && mayWiden(attributes)
	return r.reviews.ask(ctx, q.keys[0],
		func() (decision, bool) { return r.known(q) },
		func(ctx context.Context) (decision, error) {
			if known, ok := r.askWider(ctx, q); ok {
				return known, nil
			}
			return r.review(ctx, q)
		})
}

// known returns the answer to a question that was answered recently, by itself or as a part of a wider one.
func (r *AccessReviewer) known(q *question) (decision, bool) {
	if known, ok := r.get(q.keys[0]); ok || !q.mayWiden {
		return known, ok
	}
	for _, wider := range q.keys[1:] {
		if known, ok := r.get(wider); ok && known.verdict == authorizer.DecisionAllow && !known.alone {
			return known, true
		}
	}
	return decision{}, false
}

func (r *AccessReviewer) review(ctx context.Context, q *question) (decision, error) {
	asked := r.clock.Now()
	result := &authorizationv1.SubjectAccessReview{}
	err := r.post(ctx, &authorizationv1.SubjectAccessReview{Spec: q.spec}, result)
	r.Counts.answered(err == nil && result.Status.Allowed, err)
	if err != nil {
		return decision{}, request.AsUnavailable("reviewing access", err)
	}
	answer, ttl := decision{
		verdict: authorizer.DecisionNoOpinion,
		reason:  request.Bounded(result.Status.Reason),
	}, r.denyTTL
	switch {
	case result.Status.Denied:
		answer.verdict = authorizer.DecisionDeny
	case result.Status.Allowed:
		answer.verdict, ttl = authorizer.DecisionAllow, r.allowTTL
	}
	r.keep(q, answer, ttl-r.clock.Since(asked))
	return answer, nil
}

// Authorize passes on what the reviewer allows, and answers 403 to the rest. The decision is written into the audit log.
func Authorize(next http.Handler, r *AccessReviewer, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		attributes, err := filters.GetAuthorizerAttributes(ctx)
		if err != nil {
			request.WriteStatus(w, req, s, apierrors.NewInternalError(err))
			return
		}
		for asked := attributes; asked != nil; asked = alsoNeeded(asked) {
			verdict, reason, err := r.decide(ctx, asked, true)
			if err != nil || verdict != authorizer.DecisionAllow {
				request.WriteStatus(w, req, s, refusal(ctx, asked, reason, err))
				return
			}
			audit.AddAuditAnnotation(ctx, "authorization.k8s.io/decision", "allow")
		}
		next.ServeHTTP(w, req)
	})
}

// refusal returns the error for the client of a request that is not allowed. With err, nothing was decided.
func refusal(ctx context.Context, asked authorizer.Attributes, reason string, err error) error {
	switch {
	case request.IsUnavailable(err):
		return request.StatusUnanswered(ctx, err, "the API server cannot be reached to authorize the request")
	case err != nil:
		klog.FromContext(ctx).Error(err, "Refused a request that could not be authorized")
		return apierrors.NewInternalError(errNotAuthorizable)
	}
	audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", "forbid", "authorization.k8s.io/reason", reason)
	return responsewriters.ForbiddenStatusError(asked, reason)
}

// alsoNeeded returns a second question that has to be allowed too, or nil. Websocket clients run commands in pods
// with the method GET, for which an old API server only asks whether get is allowed. Here create has to be allowed as
// well.
func alsoNeeded(asked authorizer.Attributes) authorizer.Attributes {
	if asked.GetVerb() == "create" || !asked.IsResourceRequest() || asked.GetAPIGroup() != "" ||
		asked.GetResource() != "pods" {
		return nil
	}
	switch asked.GetSubresource() {
	case "exec", "attach", "portforward":
		return toCreate{asked}
	}
	return nil
}

type toCreate struct{ authorizer.Attributes }

func (toCreate) GetVerb() string { return "create" }
