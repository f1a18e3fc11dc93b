package identity

import (
	"context"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// WithOriginalUser records the user who made the request, before nested impersonation replaces it.
func WithOriginalUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		state := request.From(req.Context())
		state.Original, _ = apirequest.UserFrom(req.Context())
		state.Nested = req.Header.Get(authenticationv1.ImpersonateUserHeader) != ""
		next.ServeHTTP(w, req)
	})
}

// Impersonate authorizes and applies nested impersonation with the API server's own filter. That filter caches allowed
// requests without a limit and with a fixed lifetime. So Impersonate replaces the filter after each lifetime, that of
// an allowed access review: a revoked permission to impersonate then ends as soon as any other.
func Impersonate(
	next http.Handler,
	allowed authorizer.UnconditionalAuthorizer,
	s runtime.NegotiatedSerializer,
	clk clock.PassiveClock,
	lifetime time.Duration,
) http.Handler {
	var mu sync.Mutex
	var made time.Time
	var filter http.Handler
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		if now := clk.Now(); filter == nil || now.Sub(made) >= lifetime {
			made, filter = now, impersonation.WithConstrainedImpersonation(next, nestedAuthorizer{allowed}, s)
		}
		current := filter
		mu.Unlock()
		current.ServeHTTP(w, req)
	})
}

// nestedAuthorizer authorizes nested impersonation. Its caller, the filter, can only allow or respond with 403. But an
// unreachable API server has denied nothing, so nestedAuthorizer then panics with ReviewPanic.
type nestedAuthorizer struct {
	authorizer.UnconditionalAuthorizer
}

// ReviewPanic is recovered by the outermost filter, which responds that nothing was decided because of Err.
type ReviewPanic struct{ Err error }

func (a nestedAuthorizer) Authorize(
	ctx context.Context, attributes authorizer.Attributes,
) (authorizer.Decision, string, error) {
	verdict, reason, err := a.UnconditionalAuthorizer.Authorize(ctx, attributes)
	switch {
	case err == nil || verdict == authorizer.DecisionAllow:
		return verdict, reason, nil
	case request.IsUnavailable(err):
		panic(ReviewPanic{err})
	}
	// The filter would show the error to the client, which must not see internal errors.
	klog.FromContext(ctx).Error(err, "Failed to authorize impersonation")
	return verdict, reason, errNotAuthorizable
}
