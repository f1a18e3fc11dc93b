package concierge

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// keepFrontProxyConnection undoes what the API server library does against HTTP/2 abuse where that does harm: it ends the connection
// after an anonymous request. The front proxy sends the requests of many users, anonymous ones too, over one connection, and
// closing that makes the requests beside it fail. The front proxy is told by its client certificate: whoever presents a
// certificate that is not accepted gets the answer 401, and is disconnected as ever.
func keepFrontProxyConnection(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		keep := &keepOpen{ResponseWriter: w}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(keep), r)
		keep.settle(http.StatusOK)
	})
}

type keepOpen struct {
	http.ResponseWriter
	settled bool
}

var _ responsewriter.UserProvidedDecorator = (*keepOpen)(nil)

func (k *keepOpen) Unwrap() http.ResponseWriter { return k.ResponseWriter }

func (k *keepOpen) WriteHeader(status int) {
	k.settle(status)
	k.ResponseWriter.WriteHeader(status)
}

func (k *keepOpen) Write(data []byte) (int, error) {
	k.settle(http.StatusOK) // which is what Write implies
	return k.ResponseWriter.Write(data)
}

// settle decides once, when the status becomes known and the header is still to be sent.
func (k *keepOpen) settle(status int) {
	if k.settled || status < http.StatusOK { // 1xx come before the real one
		return
	}
	k.settled = true
	if status != http.StatusUnauthorized {
		k.Header().Del("Connection")
	}
}
