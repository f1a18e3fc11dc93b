package impersonator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	decisionMadeBy = "decision made by impersonation-proxy.concierge.pinniped.dev"
	maxDecisions   = 16384
)

var errNotAuthorizable = errors.New("the request could not be authorized")

// decision is the answer to one SubjectAccessReview.
type decision struct {
	verdict authorizer.Decision
	reason  string
}

// accessReviewer authorizes by SubjectAccessReview. Equal questions that come at the same time cause one review. Answers are
// kept for a short time, which is counted from the moment at which the API server was asked.
type accessReviewer struct {
	reviews  authorizationv1client.SubjectAccessReviewInterface
	clock    clock.PassiveClock
	allowTTL time.Duration
	denyTTL  time.Duration
	cache    *cache.LRUExpireCache // decision by the hash of the question
	flights  singleflight.Group
	counts   reviewCounts
}

// Authorize implements authorizer.UnconditionalAuthorizer. The reason that it returns always names this proxy.
func (r *accessReviewer) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	known, answer, err := r.ask(ctx, attributes)
	if answer != nil {
		return answer(ctx)
	}
	return known.verdict, madeHere(known.reason), err
}

func madeHere(reason string) string {
	if reason != "" {
		reason += ", "
	}
	return reason + decisionMadeBy
}

// ask returns the decision if it is already known. If it is not, ask starts a review and returns answer, a function that waits
// for the review.
func (r *accessReviewer) ask(ctx context.Context, attributes authorizer.Attributes) (
	known decision, answer func(context.Context) (authorizer.Decision, string, error), err error,
) {
	who := attributes.GetUser()
	switch {
	case who == nil:
		return decision{verdict: authorizer.DecisionDeny}, nil, errors.New("no user to authorize")
	case attributes.GetVerb() == "":
		return decision{authorizer.DecisionDeny, "invalid verb"}, nil, nil
	case slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup):
		return decision{verdict: authorizer.DecisionAllow}, nil, nil
	case !attributes.IsResourceRequest() && slices.Contains(healthPaths[:], attributes.GetPath()):
		return decision{verdict: authorizer.DecisionAllow}, nil, nil
	}
	spec := reviewSpec(attributes)
	// Two specs have the same encoding only if they ask the same question.
	encoded, err := spec.Marshal()
	if err != nil {
		return decision{verdict: authorizer.DecisionDeny}, nil, fmt.Errorf("encoding the access review: %w", err)
	}
	key := sha256.Sum256(encoded)
	if known, ok := r.known(key, attributes.GetVerb()); ok {
		r.counts.hits.Add(1)
		return known, nil, nil
	}
	r.counts.misses.Add(1)
	flight := r.flights.DoChan(string(key[:]), func() (any, error) {
		if known, ok := r.known(key, attributes.GetVerb()); ok { // an equal question was answered in between
			return known, nil
		}
		return r.review(context.WithoutCancel(ctx), key, spec)
	})
	return decision{}, func(ctx context.Context) (authorizer.Decision, string, error) {
		select {
		case landed := <-flight:
			if landed.Err != nil {
				return authorizer.DecisionDeny, decisionMadeBy, landed.Err
			}
			answer := landed.Val.(decision)
			return answer.verdict, madeHere(answer.reason), nil
		case <-ctx.Done():
			return authorizer.DecisionDeny, decisionMadeBy, &unavailableError{doing: "reviewing access", cause: ctx.Err()}
		}
	}, nil
}

// known returns the answer to a question that was answered recently.
func (r *accessReviewer) known(key [sha256.Size]byte, verb string) (decision, bool) {
	found, ok := r.cache.Get(key)
	if !ok {
		return decision{}, false
	}
	known := found.(decision)
	return known, (known.verdict != authorizer.DecisionAllow || !rememberedByAsker(verb))
}

func (r *accessReviewer) review(ctx context.Context, key [sha256.Size]byte, spec authorizationv1.SubjectAccessReviewSpec) (decision, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	asked := r.clock.Now()
	result, err := r.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	r.counts.answered(err == nil && result.Status.Allowed, err)
	if err != nil {
		return decision{}, asUnavailable("reviewing access", err)
	}
	answer, ttl := decision{verdict: authorizer.DecisionNoOpinion, reason: bounded(result.Status.Reason)}, r.denyTTL
	switch {
	case result.Status.Denied:
		answer.verdict = authorizer.DecisionDeny
	case result.Status.Allowed:
		answer.verdict, ttl = authorizer.DecisionAllow, r.allowTTL
	}
	r.cache.Add(key, answer, ttl-r.clock.Since(asked))
	return answer, nil
}

// authorize passes on what the reviewer allows, and answers 403 to the rest. A speculative read is passed on while its review
// is under way; holdUntilAuthorized then waits for the review.
func authorize(next http.Handler, r *accessReviewer, note decided, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		attributes, err := filters.GetAuthorizerAttributes(ctx)
		if err != nil {
			writeStatus(w, req, s, apierrors.NewInternalError(err))
			return
		}
		for asked := attributes; asked != nil; asked = alsoNeeded(asked) {
			known, answer, err := r.ask(ctx, asked)
			state := stateFrom(ctx)
			if answer != nil && maySpeculate(req, state) {
				state.review = &pendingReview{attributes: asked, answer: answer, note: note}
				continue
			}
			verdict, reason := known.verdict, madeHere(known.reason)
			if answer != nil {
				verdict, reason, err = answer(ctx)
			}
			note.tell(ctx, verdict, reason, err)
			if err := refusal(ctx, asked, verdict, reason, err); err != nil {
				writeStatus(w, req, s, err)
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}

// decided is called with every decision. It is nil when there is no audit log to write decisions to.
type decided func(ctx context.Context, verdict authorizer.Decision, reason string, err error)

func (d decided) tell(ctx context.Context, verdict authorizer.Decision, reason string, err error) {
	if d != nil {
		d(ctx, verdict, reason, err)
	}
}

// refusal turns a reviewer's decision into the error for the client. It is nil when the request is allowed.
func refusal(ctx context.Context, asked authorizer.Attributes, verdict authorizer.Decision, reason string, err error) error {
	switch {
	case verdict == authorizer.DecisionAllow:
		return nil
	case isUnavailable(err):
		return statusUnavailable("the API server cannot be reached to authorize the request")
	case err != nil:
		klog.FromContext(ctx).Error(err, "Refused a request that could not be authorized")
		return apierrors.NewInternalError(errNotAuthorizable)
	}
	return responsewriters.ForbiddenStatusError(asked, reason)
}

// alsoNeeded returns a second question that has to be allowed too, or nil. Websocket clients run commands in pods with the
// method GET, for which an old API server only asks whether get is allowed. Here create has to be allowed as well.
func alsoNeeded(asked authorizer.Attributes) authorizer.Attributes {
	if asked.GetVerb() == "create" || !asked.IsResourceRequest() || asked.GetAPIGroup() != "" || asked.GetResource() != "pods" {
		return nil
	}
	switch asked.GetSubresource() {
	case "exec", "attach", "portforward":
	default:
		return nil
	}
	return &authorizer.AttributesRecord{
		User:            asked.GetUser(),
		Verb:            "create",
		Namespace:       asked.GetNamespace(),
		APIGroup:        asked.GetAPIGroup(),
		APIVersion:      asked.GetAPIVersion(),
		Resource:        asked.GetResource(),
		Subresource:     asked.GetSubresource(),
		Name:            asked.GetName(),
		ResourceRequest: true,
		Path:            asked.GetPath(),
	}
}
