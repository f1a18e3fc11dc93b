package concierge

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// keepFrontProxyConnection keeps the front proxy's HTTP/2 connections open. Against abuse, the API server library
// closes a connection after an anonymous request. The front proxy sends the requests of many users over one connection,
// including anonymous ones; closing it would fail the others. The front proxy is identified by its client certificate.
// A client with an invalid certificate gets 401, and its connection is closed.
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
	k.settle(http.StatusOK) // the status that Write implies
	return k.ResponseWriter.Write(data)
}

// settle decides once, when the status is known and the header is not sent yet.
func (k *keepOpen) settle(status int) {
	if k.settled || status < http.StatusOK { // 1xx precede the final status
		return
	}
	k.settled = true
	if status != http.StatusUnauthorized {
		k.Header().Del("Connection")
	}
}
