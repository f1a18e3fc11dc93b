package impersonator

import (
	"context"
	"net/http"
	"net/http/httptrace"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// A plain read changes nothing in the cluster, and the API server itself checks it again as the same user. So when its
// access review is not in the cache, the read is sent while the review is under way, and the API server's answer is held
// back until the review allows it. A client that is denied sees what it would have seen otherwise: a 403 of our own, and
// nothing of the API server's answer.

// mayGoBeside is true for requests whose review may run beside them: get, list and watch of resources, never of
// subresources, some of which act when they are read (exec, proxy, portforward), and never a switch of protocols. A user
// with a UID who came with a token waits too: to old API servers that token goes on itself (see carrier), and it is to be
// proven again after everything else.
func mayGoBeside(req *http.Request, state *requestState) bool {
	info, ok := request.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest || info.Subresource != "" || state.upgrade != "" {
		return false
	}
	if who, ok := request.UserFrom(req.Context()); !ok || who.GetUID() != "" && state.bearer != "" {
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

// underReview is an access review that was asked for and is not answered yet.
type underReview struct {
	attributes authorizer.Attributes
	answer     func(context.Context) (authorizer.Decision, string, error)
	note       decided
}

// refusal waits for the answer and returns what the client is to be told, nil when the request is allowed.
func (r *underReview) refusal(ctx context.Context) error {
	verdict, reason, err := r.answer(ctx)
	r.note.tell(ctx, verdict, reason, err)
	return refusal(ctx, r.attributes, verdict, reason, err)
}

// afterReview holds an answer back until the request's review, if one is under way, allows it. It is the outermost
// RoundTripper, so that a denial comes before every other reason why there is no answer.
type afterReview struct {
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t afterReview) RoundTrip(req *http.Request) (*http.Response, error) {
	state := stateFrom(req.Context())
	if state == nil || state.review == nil {
		return t.next.RoundTrip(req)
	}
	// Ends at the latest with the client's request; until then the answer's body needs it.
	ctx, cancel := context.WithCancelCause(untraced{req.Context()})
	refused := make(chan error, 1)
	go func() {
		err := state.review.refusal(req.Context())
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

// untraced hides from the transport that somebody wants to know of informational answers (1xx): ReverseProxy would pass
// them on before the review has allowed anything.
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
