package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// retryAfterSeconds is what a client is told to wait when the API server cannot be reached.
const retryAfterSeconds = 1

// newStatusSerializer returns a serializer that knows metav1.Status in every encoding that Kubernetes clients ask for.
func newStatusSerializer() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{})
	return serializer.NewCodecFactory(scheme)
}

// writeStatus answers with err as a metav1.Status, in the encoding the client asked for.
func writeStatus(w http.ResponseWriter, req *http.Request, s runtime.NegotiatedSerializer, err error) {
	responsewriters.ErrorNegotiated(err, s, metav1.Unversioned, w, req)
}

// unavailableError says that the API server gave no answer. That is neither a yes nor a no.
type unavailableError struct {
	doing string
	cause error
}

func (e *unavailableError) Error() string { return e.doing + ": " + e.cause.Error() }
func (e *unavailableError) Unwrap() error { return e.cause }

// Unavailable tells other packages what kind of error this is.
func (e *unavailableError) Unavailable() bool { return true }

// asUnavailable wraps the error of a call to the API server in an unavailableError. It does not when the API server
// answered with an error that trying again will not change.
func asUnavailable(doing string, err error) error {
	var answered apierrors.APIStatus
	if errors.As(err, &answered) {
		code := answered.Status().Code
		if code != http.StatusTooManyRequests && code != http.StatusServiceUnavailable &&
			code != http.StatusGatewayTimeout && code != http.StatusBadGateway {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	return &unavailableError{doing: doing, cause: err}
}

// isUnavailable is true when err is no decision: the API server gave none, or it was not asked because the client
// causes too much work. See statusUnanswered for what the client is told.
func isUnavailable(err error) bool {
	var unavailable interface{ Unavailable() bool } // of other packages, too
	return errors.As(err, &unavailable) && unavailable.Unavailable()
}

// tooManyError says that a client holds or causes more than it may, or that all clients together do.
type tooManyError struct {
	what      string
	limit     string // the key of the bound in the configuration, if it has one
	everybody bool   // the bound is that of all clients together, or of all that have no user
}

// tooMany makes one of an error of the budget. Another error is an unknown bound of everybody.
func tooMany(err error) *tooManyError {
	exceeded, ok := errors.AsType[*budget.Exceeded](err)
	if !ok {
		return &tooManyError{what: "requests", everybody: true}
	}
	return &tooManyError{
		what:      exceeded.Resource.String(),
		limit:     "limits." + exceeded.Resource.String() + "." + exceeded.Share.String(),
		everybody: exceeded.Share == budget.Total || exceeded.Share == budget.Unauthenticated,
	}
}

func (e *tooManyError) Error() string {
	if e.limit == "" {
		return "too many " + e.what
	}
	return fmt.Sprintf("too many %s: %s is reached", e.what, e.limit)
}

// Unavailable implements what isUnavailable looks for.
func (e *tooManyError) Unavailable() bool { return true }

// status is the answer, which says when to try again: 429 when the client itself is the cause, and 503 when all clients
// together are.
func (e *tooManyError) status() *apierrors.StatusError {
	if e.everybody {
		return statusUnavailable("the proxy is busy: " + e.Error())
	}
	answer := statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, e.Error())
	answer.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
	return answer
}

// errClientLeft is the answer to a request whose client has left before the API server's answer came, and that has
// changed nothing. No client reads it. It tells the audit log and the metrics, and makes the request of a stranger count
// as refused. errClientLeftWrite is that to a write which was sent.
var (
	errClientLeft      = statusUnavailable("the client has left before it was answered")
	errClientLeftWrite = statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the client has left before it was answered; the request may have been carried out")
)

// hasLeft is true when the request with this context ended because its client left.
func hasLeft(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), errDraining)
}

// statusUnanswered is the answer when err, an error for which isUnavailable is true, kept something from being
// decided: that of a tooManyError, and otherwise 503 with the message. ctx is that of the request.
func statusUnanswered(ctx context.Context, err error, message string) *apierrors.StatusError {
	if hasLeft(ctx) {
		return errClientLeft
	}
	if tooMany, ok := errors.AsType[*tooManyError](err); ok {
		return tooMany.status()
	}
	return statusUnavailable(message)
}

// statusUnavailable is the answer while the API server cannot be reached: the request was not carried out.
func statusUnavailable(message string) *apierrors.StatusError {
	err := statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
	return err
}

func statusError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: message,
	}}
}
