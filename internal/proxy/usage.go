package proxy

import (
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// noteUse calls used for each request of an authenticated client, with the name by which it verified the certificate, and
// for each login. Health checks and what is refused earlier are no use.
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
