package proxy

import (
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// loginInfoEndpoint serves how users log in: as a document at logininfo.Path, and to browsers as a page at "/". Like
// the trust bundle endpoint, it ignores credentials and needs no API server.
func loginInfoEndpoint(
	next http.Handler,
	current func() *logininfo.Offer,
	used func(string),
	s runtime.NegotiatedSerializer,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		page := req.URL.Path == "/" && acceptsHTML(req.Header)
		if req.Method != http.MethodGet || !page && req.URL.Path != logininfo.Path {
			next.ServeHTTP(w, req)
			return
		}
		offer := current()
		if offer == nil && page {
			next.ServeHTTP(w, req)
			return
		}
		if offer == nil {
			request.WriteStatus(w, req, s, apierrors.NewNotFound(schema.GroupResource{}, "spec.impersonationProxy.kubeconfig"))
			return
		}
		content := offer.Document
		if page {
			content = offer.Page
			w.Header().Set("Vary", "Accept")
		}
		if used != nil {
			used("") // the client is about to trust the CA bundle
		}
		serveContent(w, req, content)
	})
}

// serveContent responds with content that caches may keep for a minute.
func serveContent(w http.ResponseWriter, req *http.Request, content logininfo.Content) {
	header := w.Header()
	header.Set("Cache-Control", "public, max-age=60")
	header.Del("Pragma")
	header.Del("Expires")
	header.Set("Etag", content.ETag)
	if content.Policy != "" {
		header.Set("Content-Security-Policy", content.Policy)
	}
	if strings.Contains(req.Header.Get("If-None-Match"), content.ETag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", content.Type)
	header.Set("Content-Length", strconv.Itoa(len(content.Body)))
	_, _ = w.Write(content.Body)
}

// acceptsHTML is true for browsers. kubectl and other API clients do not accept HTML by name.
func acceptsHTML(header http.Header) bool {
	for _, accepted := range strings.Split(strings.Join(header.Values("Accept"), ","), ",") {
		if mediaType, _, _ := strings.Cut(accepted, ";"); strings.EqualFold(strings.TrimSpace(mediaType), "text/html") {
			return true
		}
	}
	return false
}
