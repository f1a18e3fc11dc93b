package proxy

import (
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// noteUse calls used for each login, and for each request of an authenticated client with the server name of its TLS
// handshake. Health checks and requests refused earlier do not count.
func noteUse(next http.Handler, used func(name string), loginGroup string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, found := apirequest.RequestInfoFrom(req.Context())
		switch who, ok := apirequest.UserFrom(req.Context()); {
		case ok && !request.IsAnonymous(who):
			name := ""
			if req.TLS != nil {
				name = req.TLS.ServerName
			}
			used(name)
		case found && identity.IsLogin(info, loginGroup):
			used("")
		}
		next.ServeHTTP(w, req)
	})
}
