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

// accessReviewer authorizes by SubjectAccessReview. Equal questions at once cause one review; answers are kept for a
// short time, counted from the moment the question was asked.
type accessReviewer struct {
	reviews  authorizationv1client.SubjectAccessReviewInterface
	clock    clock.PassiveClock
	allowTTL time.Duration
	denyTTL  time.Duration
	cache    *boundedCache[[sha256.Size]byte, decision]
	flights  singleflight.Group
	counts   reviewCounts
}

// Authorize implements authorizer.UnconditionalAuthorizer. The reason always says that the decision was made here.
func (r *accessReviewer) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	verdict, reason, err := r.decide(ctx, attributes)
	if reason != "" {
		reason += ", "
	}
	return verdict, reason + decisionMadeBy, err
}

func (r *accessReviewer) decide(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	who := attributes.GetUser()
	switch {
	case who == nil:
		return authorizer.DecisionDeny, "", errors.New("no user to authorize")
	case attributes.GetVerb() == "":
		return authorizer.DecisionDeny, "invalid verb", nil
	case slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup):
		return authorizer.DecisionAllow, "", nil
	case !attributes.IsResourceRequest() && slices.Contains(healthPaths[:], attributes.GetPath()):
		return authorizer.DecisionAllow, "", nil
	}
	spec := reviewSpec(attributes)
	// The encoding is deterministic and unambiguous, so it identifies the question.
	encoded, err := spec.Marshal()
	if err != nil {
		return authorizer.DecisionDeny, "", fmt.Errorf("encoding the access review: %w", err)
	}
	key := sha256.Sum256(encoded)
	known, ok := r.cache.get(key, r.clock.Now())
	if ok && (known.verdict != authorizer.DecisionAllow || !rememberedByAsker(attributes.GetVerb())) {
		r.counts.hits.Add(1)
		return known.verdict, known.reason, nil
	}
	r.counts.misses.Add(1)
	flight := r.flights.DoChan(string(key[:]), func() (any, error) {
		return r.review(context.WithoutCancel(ctx), key, spec)
	})
	select {
	case landed := <-flight:
		if landed.Err != nil {
			return authorizer.DecisionDeny, "", landed.Err
		}
		answer := landed.Val.(decision)
		return answer.verdict, answer.reason, nil
	case <-ctx.Done():
		return authorizer.DecisionDeny, "", &unavailableError{doing: "reviewing access", cause: ctx.Err()}
	}
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
	r.cache.put(key, answer, asked.Add(ttl))
	return answer, nil
}

// authorize lets pass what the authorizer allows, and answers 403 otherwise.
func authorize(next http.Handler, a authorizer.UnconditionalAuthorizer, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		attributes, err := filters.GetAuthorizerAttributes(req.Context())
		if err != nil {
			writeStatus(w, req, s, apierrors.NewInternalError(err))
			return
		}
		for asked := attributes; asked != nil; asked = alsoNeeded(asked) {
			verdict, reason, err := a.Authorize(req.Context(), asked)
			switch {
			case verdict == authorizer.DecisionAllow:
				continue
			case isUnavailable(err):
				writeStatus(w, req, s, statusUnavailable("the API server cannot be reached to authorize the request"))
			case err != nil:
				klog.FromContext(req.Context()).Error(err, "Refused a request that could not be authorized")
				writeStatus(w, req, s, apierrors.NewInternalError(errNotAuthorizable))
			default:
				writeStatus(w, req, s, responsewriters.ForbiddenStatusError(asked, reason))
			}
			return
		}
		next.ServeHTTP(w, req)
	})
}

// alsoNeeded returns what has to be allowed besides asked. Running a command in a pod is create, also when a websocket
// client has to say it with GET: old API servers would be content with get.
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
