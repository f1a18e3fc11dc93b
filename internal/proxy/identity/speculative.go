package identity

import (
	"context"
	"net/http"
	"net/http/httptrace"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// A speculative read is sent to the API server while its access review is still under way. The API server's answer is
// held back until the review allows it. This is safe because a plain read changes nothing in the cluster, and the API
// server authorizes it once more as the same user. A client that is denied gets our own 403, and nothing of the API
// server's answer.

// maySpeculate is true for requests that may be sent before their access review is answered: get, list and watch of
// resources. Subresources are left out, because some of them act when they are read (exec, proxy, portforward), and
// so are switches of protocols.
func maySpeculate(req *http.Request, state *request.State) bool {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest || info.Subresource != "" || state.Upgrade != "" {
		return false
	}
	if req.Method != http.MethodGet || req.ContentLength != 0 {
		return false
	}
	switch info.Verb {
	case "get", "list", "watch":
		return true
	}
	return false
}

// pendingReview is an access review that the API server has been asked for and has not answered yet.
type pendingReview struct {
	attributes authorizer.Attributes
	flight     *reviewFlight[decision]
	note       Decided
}

// Refusal implements request.Review. It waits for the answer, and returns the error for the client, and nil when the request is allowed.
func (r *pendingReview) Refusal(ctx context.Context) error {
	answer, err := r.flight.wait(ctx)
	verdict, reason := answer.verdict, madeHere(answer.reason)
	r.note.tell(ctx, verdict, reason, err)
	return refusal(ctx, r.attributes, verdict, reason, err)
}

// HoldUntilAuthorized returns the RoundTripper that has to be the outermost one of those that send speculative reads.
func HoldUntilAuthorized(next http.RoundTripper) http.RoundTripper { return holdUntilAuthorized{next} }

// holdUntilAuthorized holds the answer to a speculative read back until the access review allows it. It is the
// outermost RoundTripper. So a client that is denied gets a 403 even when the request failed for another reason as
// well.
type holdUntilAuthorized struct {
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t holdUntilAuthorized) RoundTrip(req *http.Request) (*http.Response, error) {
	state := request.From(req.Context())
	if state == nil || state.Review == nil {
		return t.next.RoundTrip(req)
	}
	// This context is not cancelled here after a success, because the answer's body still needs it. It ends with the
	// client's request.
	ctx, cancel := context.WithCancelCause(untraced{req.Context()})
	refused := make(chan error, 1)
	go func() {
		err := state.Review.Refusal(req.Context())
		if err != nil {
			cancel(err)
		}
		refused <- err
	}()
	response, err := t.next.RoundTrip(req.WithContext(ctx))
	if refusal := <-refused; refusal != nil {
		if err == nil {
			_ = response.Body.Close()
		}
		return nil, refusal
	}
	if err != nil {
		cancel(err)
	}
	return response, err
}

// untraced hides the hook by which ReverseProxy learns of informational answers (1xx). ReverseProxy would pass them
// on to the client before the review has allowed anything.
type untraced struct {
	context.Context //nolint:containedctx // it is a context
}

// Value implements context.Context.
func (c untraced) Value(key any) any {
	value := c.Context.Value(key)
	if _, ok := value.(*httptrace.ClientTrace); ok {
		return nil
	}
	return value
}
