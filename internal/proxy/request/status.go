package request

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

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

// RetryAfterSeconds is the Retry-After of retryable errors.
const RetryAfterSeconds = 1

// NewSerializer returns a serializer for metav1.Status in all encodings of Kubernetes clients.
func NewSerializer() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{})
	return serializer.NewCodecFactory(scheme)
}

// WriteStatus responds with err as a metav1.Status, in the encoding the client asked for.
func WriteStatus(w http.ResponseWriter, req *http.Request, s runtime.NegotiatedSerializer, err error) {
	responsewriters.ErrorNegotiated(err, s, metav1.Unversioned, w, req)
}

// UnavailableError says that the API server did not decide.
type UnavailableError struct {
	Doing string
	Cause error
}

func (e *UnavailableError) Error() string { return e.Doing + ": " + e.Cause.Error() }
func (e *UnavailableError) Unwrap() error { return e.Cause }

// Unavailable marks the error for IsUnavailable.
func (e *UnavailableError) Unavailable() bool { return true }

// AsUnavailable wraps the error of a call to the API server in an UnavailableError, unless the API server responded
// with an error that a retry will not change.
func AsUnavailable(doing string, err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		if code != http.StatusTooManyRequests && code != http.StatusServiceUnavailable &&
			code != http.StatusGatewayTimeout && code != http.StatusBadGateway {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	return &UnavailableError{Doing: doing, Cause: err}
}

// IsUnavailable is true when err is not a decision: the API server was not reached, or was not asked because of a
// limit. Respond with StatusUndecided.
func IsUnavailable(err error) bool {
	var unavailable interface{ Unavailable() bool } // also of other packages
	return errors.As(err, &unavailable) && unavailable.Unavailable()
}

// StatusFull is the response when a limit is reached: 429 for a limit of the client, 503 for a limit of all clients. It
// has a Retry-After.
func StatusFull(err error) *apierrors.StatusError {
	full, ok := errors.AsType[*flowcontrol.Full](err)
	if !ok || !full.Own {
		return StatusUnavailable("the proxy is busy: " + err.Error())
	}
	status := StatusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, err.Error())
	status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: RetryAfterSeconds}
	return status
}

// ErrClientLeft is the response when the client disconnected before the API server responded, and nothing was changed.
// No client reads it; it is for the audit log and the metrics, where an unauthenticated client's request counts as
// refused. ErrClientLeftWrite is the same for a write that was already sent.
var (
	ErrClientLeft      = StatusUnavailable("the client disconnected before the response")
	ErrClientLeftWrite = StatusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the client disconnected before the response; the request may have been carried out")
)

// ErrDraining is the cause with which the proxy ends streams when it shuts down.
var ErrDraining = errors.New("the impersonation proxy is shutting down")

// HasLeft is true when the request with this context ended because its client disconnected.
func HasLeft(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), ErrDraining)
}

// StatusUndecided is the response when err, for which IsUnavailable is true, prevented a decision: ErrClientLeft,
// StatusFull, or 503 with the message. ctx is the context of the request.
func StatusUndecided(ctx context.Context, err error, message string) *apierrors.StatusError {
	if HasLeft(ctx) {
		return ErrClientLeft
	}
	if _, full := errors.AsType[*flowcontrol.Full](err); full {
		return StatusFull(err)
	}
	return StatusUnavailable(message)
}

// StatusUnavailable is a retryable 503: the request was not carried out.
func StatusUnavailable(message string) *apierrors.StatusError {
	err := StatusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: RetryAfterSeconds}
	return err
}

// StatusError returns a metav1.Status with these fields.
func StatusError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: message,
	}}
}
