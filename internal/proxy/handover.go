package proxy

import (
	"net/http"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pinniped-toolkit/pinniped/internal/handover"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// handOver answers GET requests for handover.Path with the document of the advertised CA bundle. Credentials are not
// looked at: the response is the same for everybody, is in memory, and goes nowhere near the API server. The request
// counts as one of a client without a user, as long as its connection has none.
func handOver(
	next http.Handler,
	advertised func() []byte,
	used func(string),
	s runtime.NegotiatedSerializer,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != handover.Path || req.Method != http.MethodGet {
			next.ServeHTTP(w, req)
			return
		}
		document := advertised()
		if document == nil {
			request.WriteStatus(w, req, s, request.StatusUnavailable("no CA bundle is advertised that could be handed on"))
			return
		}
		if used != nil {
			used("") // somebody is about to trust it
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(document)))
		_, _ = w.Write(document) // a client that has left is no error
	})
}
