package proxy

import (
	"net/http"
	"strconv"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/handover"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// handOver answers requests for handover.Path with the advertised CA bundle. Credentials are not looked at: the answer
// is the same for everybody, is in memory, and goes nowhere near the API server. The request counts as one of a client
// without a user, as long as its connection has none.
func handOver(next http.Handler, advertised func() *CABundle, s runtime.NegotiatedSerializer) http.Handler {
	type rendered struct {
		of       *CABundle
		document []byte // nil when it cannot be handed on
	}
	var last atomic.Pointer[rendered]
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != handover.Path {
			next.ServeHTTP(w, req)
			return
		}
		state := request.From(req.Context())
		if state.Holds.Owner().IsStranger() {
			request.CloseAfterwards(w.Header())
		}
		if req.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			request.WriteStatus(w, req, s, request.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
				"the CA bundle can only be read"))
			return
		}
		bundle, now := advertised(), last.Load()
		if bundle != nil && (now == nil || now.of != bundle) {
			document, err := handover.Encode(bundle.PEM)
			if err != nil {
				klog.FromContext(req.Context()).Error(err, "Could not hand on the advertised CA bundle")
			}
			now = &rendered{bundle, document}
			last.Store(now)
		}
		if bundle == nil || now.document == nil {
			request.WriteStatus(w, req, s, request.StatusUnavailable("no CA bundle is advertised that could be handed on"))
			return
		}
		if err := state.Holds.Hold(admission.Answer, int64(len(now.document))); err != nil {
			refuseFull(w, req, s, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(now.document)))
		_, _ = w.Write(now.document) // a client that has left is no error
	})
}
