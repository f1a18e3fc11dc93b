package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// DecisionMadeBy ends the reason of each decision.
	DecisionMadeBy = "decision made by impersonation-proxy.concierge.pinniped.dev"
	maxDecisions   = 16384
	// maxUnauthenticated is how many decisions about unauthenticated clients are cached.
	maxUnauthenticated = 1024
)

var errNotAuthorizable = errors.New("the request could not be authorized")

// Authorize passes on requests that the reviewer allows, and refuses all others with 403. It records the decision in
// the audit log. The API server authorizes the request again, as the impersonated user.
func Authorize(next http.Handler, r *AccessReviewer, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		attributes, err := filters.GetAuthorizerAttributes(ctx)
		if err != nil {
			request.WriteStatus(w, req, s, apierrors.NewInternalError(err))
			return
		}
		for asked := attributes; asked != nil; asked = alsoNeeded(asked) {
			verdict, reason, err := r.authorizeRequest(ctx, asked)
			if err != nil || verdict != authorizer.DecisionAllow {
				request.WriteStatus(w, req, s, refusal(ctx, asked, reason, err))
				return
			}
			audit.AddAuditAnnotation(ctx, "authorization.k8s.io/decision", "allow")
		}
		next.ServeHTTP(w, req)
	})
}

// alsoNeeded returns a second question that must be allowed too, or nil. WebSocket clients run commands in pods with
// the method GET, for which API servers before 1.35 only check the verb get. This proxy requires create as well.
func alsoNeeded(asked authorizer.Attributes) authorizer.Attributes {
	if asked.GetVerb() == "create" || asked.GetAPIGroup() != "" || asked.GetResource() != "pods" {
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

// authorizeRequest first asks about all names, so that a client that reads a thousand objects by name, or discovers the
// APIs (/apis/...), needs one review. This permits nothing more, because the API server authorizes the request again,
// with the name. Two questions are always exact: create for a connection into a pod, which the API server may not
// check, and those of anonymous clients, because most are denied.
func (r *AccessReviewer) authorizeRequest(
	ctx context.Context, asked authorizer.Attributes,
) (authorizer.Decision, string, error) {
	_, onlyHere := asked.(toCreate)
	if !isPart(asked) || onlyHere || request.IsAnonymous(asked.GetUser()) {
		return r.Authorize(ctx, asked)
	}
	all := toAll{asked}
	if known, _ := r.cached(ctx, all); known.verdict == authorizer.DecisionAllow {
		return known.verdict, DecisionMadeBy, nil
	}
	if _, ok := r.cached(ctx, asked); !ok {
		verdict, reason, err := r.Authorize(ctx, all)
		if err != nil || verdict == authorizer.DecisionAllow {
			return verdict, reason, err
		}
	}
	return r.Authorize(ctx, asked)
}

// isPart is true for a question about one name, a selector, or a path of several segments.
func isPart(asked authorizer.Attributes) bool {
	if !asked.IsResourceRequest() {
		return allPaths(asked.GetPath()) != asked.GetPath()
	}
	ofFields, _ := asked.GetFieldSelector()
	ofLabels, _ := asked.GetLabelSelector()
	return asked.GetName() != "" || len(ofFields) > 0 || len(ofLabels) > 0
}

type toAll struct{ authorizer.Attributes }

func (t toAll) GetPath() string                              { return allPaths(t.Attributes.GetPath()) }
func (toAll) GetName() string                                { return "" }
func (toAll) GetFieldSelector() (fields.Requirements, error) { return nil, nil }
func (toAll) GetLabelSelector() (labels.Requirements, error) { return nil, nil }

// allPaths returns the pattern for all paths with the same first segment, as in RBAC rules: /apis/* for /apis/apps/v1.
// It returns a path of one segment unchanged.
func allPaths(path string) string {
	first, rest, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok || rest == "" {
		return path
	}
	return "/" + first + "/*"
}

// refusal returns the error for the client of a request that is not allowed. A non-nil err means that nothing was
// decided.
func refusal(ctx context.Context, asked authorizer.Attributes, reason string, err error) error {
	switch {
	case request.IsUnavailable(err):
		return request.StatusUndecided(ctx, err, "cannot reach the API server to authorize the request")
	case err != nil:
		klog.FromContext(ctx).Error(err, "Failed to authorize request")
		return apierrors.NewInternalError(errNotAuthorizable)
	}
	audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", "forbid", "authorization.k8s.io/reason", reason)
	return responsewriters.ForbiddenStatusError(asked, reason)
}

// AccessReviewer authorizes by SubjectAccessReview. The TTL of a cached decision starts when the API server is asked.
// Decisions about anonymous clients have a separate cache.
type AccessReviewer struct {
	reviews[decision]
	allowTTL, denyTTL time.Duration
}

// decision is the result of a SubjectAccessReview.
type decision struct {
	verdict authorizer.Decision
	reason  string
}

// NewAccessReviewer returns an AccessReviewer with empty caches.
func NewAccessReviewer(
	post PostReview, flow *flowcontrol.Controller, clk clock.PassiveClock, allowTTL, denyTTL time.Duration,
) *AccessReviewer {
	return &AccessReviewer{
		reviews:  newReviews[decision](post, flow, flowcontrol.AccessReview, clk, maxDecisions, maxUnauthenticated),
		allowTTL: allowTTL, denyTTL: denyTTL,
	}
}

// Authorize implements authorizer.UnconditionalAuthorizer. It asks exactly what the attributes say, because the API
// server does not check nested impersonation again. The reason ends with DecisionMadeBy.
func (r *AccessReviewer) Authorize(
	ctx context.Context, attributes authorizer.Attributes,
) (authorizer.Decision, string, error) {
	result, err := r.decide(ctx, attributes)
	if result.reason != "" {
		result.reason += ", "
	}
	return result.verdict, result.reason + DecisionMadeBy, err
}

func (r *AccessReviewer) decide(ctx context.Context, attributes authorizer.Attributes) (decision, error) {
	who := attributes.GetUser()
	switch {
	case who == nil:
		return decision{verdict: authorizer.DecisionDeny}, errors.New("no user to authorize")
	case attributes.GetVerb() == "":
		return decision{verdict: authorizer.DecisionDeny, reason: "invalid verb"}, nil
	case slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup),
		!attributes.IsResourceRequest() && slices.Contains(healthPaths[:], attributes.GetPath()):
		return decision{verdict: authorizer.DecisionAllow}, nil
	}
	spec, key, err := question(ctx, attributes)
	if err != nil {
		return decision{verdict: authorizer.DecisionDeny}, err
	}
	return r.ask(ctx, key, func(ctx context.Context) (decision, error) { return r.review(ctx, key, spec) })
}

// cached returns the cached decision about a question.
func (r *AccessReviewer) cached(ctx context.Context, asked authorizer.Attributes) (decision, bool) {
	_, key, err := question(ctx, asked)
	if err != nil {
		return decision{}, false
	}
	return r.get(key)
}

func question(
	ctx context.Context, asked authorizer.Attributes,
) (authorizationv1.SubjectAccessReviewSpec, questionKey, error) {
	spec := reviewSpec(ctx, asked)
	encoded, err := spec.Marshal()
	if err != nil {
		return spec, questionKey{}, fmt.Errorf("encoding the access review: %w", err)
	}
	return spec, sha256.Sum256(encoded), nil
}

func (r *AccessReviewer) review(
	ctx context.Context, key questionKey, spec authorizationv1.SubjectAccessReviewSpec,
) (decision, error) {
	asked := r.clock.Now()
	result := &authorizationv1.SubjectAccessReview{}
	err := r.post(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, result)
	r.Counts.count(err == nil && result.Status.Allowed, err)
	if err != nil {
		return decision{}, request.AsUnavailable("reviewing access", err)
	}
	outcome, ttl := decision{authorizer.DecisionNoOpinion, request.Bounded(result.Status.Reason)}, r.denyTTL
	switch {
	case result.Status.Denied:
		outcome.verdict = authorizer.DecisionDeny
	case result.Status.Allowed:
		outcome.verdict, ttl = authorizer.DecisionAllow, r.allowTTL
		if attributes := spec.ResourceAttributes; attributes != nil && cachedByFilter(attributes.Verb) {
			return outcome, nil
		}
	}
	kept := r.kept
	if spec.User == user.Anonymous {
		kept = r.apart
	}
	kept.Add(key, outcome, ttl-r.clock.Since(asked))
	return outcome, nil
}

// cachedByFilter is true for the verbs of constrained impersonation. The filter caches these permissions itself;
// caching them here too would double their lifetime.
func cachedByFilter(verb string) bool {
	return strings.HasPrefix(verb, "impersonate:") || strings.HasPrefix(verb, "impersonate-on:")
}

// reviewSpec converts the attributes to the spec of a SubjectAccessReview.
func reviewSpec(ctx context.Context, attributes authorizer.Attributes) authorizationv1.SubjectAccessReviewSpec {
	who := attributes.GetUser()
	spec := authorizationv1.SubjectAccessReviewSpec{User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
	if extra := who.GetExtra(); len(extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(extra))
		for key, values := range extra {
			spec.Extra[key] = values
		}
	}
	if !attributes.IsResourceRequest() {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{
			Path: attributes.GetPath(), Verb: attributes.GetVerb(),
		}
		return spec
	}
	about := &authorizationv1.ResourceAttributes{
		Namespace: attributes.GetNamespace(), Verb: attributes.GetVerb(), Group: attributes.GetAPIGroup(),
		Version: attributes.GetAPIVersion(), Resource: attributes.GetResource(),
		Subresource: attributes.GetSubresource(), Name: attributes.GetName(),
	}
	spec.ResourceAttributes = about
	// A selector only narrows the question: without it, the question covers more, never less.
	if info, ok := apirequest.RequestInfoFrom(ctx); ok {
		if requirements, _ := attributes.GetFieldSelector(); len(requirements) > 0 {
			about.FieldSelector = &authorizationv1.FieldSelectorAttributes{RawSelector: info.FieldSelector}
		}
		if requirements, _ := attributes.GetLabelSelector(); len(requirements) > 0 {
			about.LabelSelector = &authorizationv1.LabelSelectorAttributes{RawSelector: info.LabelSelector}
		}
	}
	return spec
}
