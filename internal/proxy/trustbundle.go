package proxy

import (
	"net/http"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
)

// trustBundleEndpoint serves the published CA bundle to GET requests for trustbundle.Path. It ignores credentials: the
// response is the same for all clients, is in memory, and needs no API server. The request counts as unauthenticated
// while its connection has no user.
func trustBundleEndpoint(
	next http.Handler,
	current func() []byte,
	used func(string),
	s runtime.NegotiatedSerializer,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != trustbundle.Path || req.Method != http.MethodGet {
			next.ServeHTTP(w, req)
			return
		}
		document := current()
		if document == nil {
			request.WriteStatus(w, req, s, request.StatusUnavailable("no trust bundle is published"))
			return
		}
		if used != nil {
			used("") // the client is about to trust it
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(document)))
		_, _ = w.Write(document)
	})
}
