package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	maxSelector = 16 << 10 // of a selector, in bytes
	// hostCharacters are the characters in host names and addresses.
	hostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]%"
)

// refuseHostile refuses methods and upgrades that must not reach the API server. It removes headers that the API server
// could mistake for those of the proxy or of another hop.
func refuseHostile(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		state := request.From(req.Context())
		if endIsInDoubt(req) {
			state.CloseAfterwards = true
			request.CloseAfterwards(w.Header())
		}
		if err := checkFraming(req); err != nil {
			request.WriteStatus(w, req, s, err)
			return
		}
		cleanHeader(req.Header)
		// Trailers arrive after the decision. The API server does not read them.
		req.Trailer = nil
		protocol, err := upgradeOf(req)
		if err != nil {
			request.CloseAfterwards(w.Header())
			request.WriteStatus(w, req, s, err)
			return
		}
		if protocol != "" {
			state.Upgrade, state.CloseAfterwards = protocol, true
			request.CloseAfterwards(w.Header())
		}
		next.ServeHTTP(w, req)
	})
}

// checkFraming refuses methods that must not reach the API server, and methods, hosts and lengths that HTTP/2 allows
// and that another program could parse differently. In HTTP/1.1, net/http itself refuses most of them.
func checkFraming(req *http.Request) error {
	switch {
	case req.Method == http.MethodConnect, req.Method == http.MethodTrace:
		return request.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			fmt.Sprintf("method %s is not supported", req.Method))
	case !httpguts.ValidHeaderFieldName(req.Method): // methods and header names have the same syntax
		return apierrors.NewBadRequest(fmt.Sprintf("method %q is not valid", request.Shown(req.Method)))
	case strings.Trim(req.Host, hostCharacters) != "":
		return apierrors.NewBadRequest(fmt.Sprintf("host %q is not valid", request.Shown(req.Host)))
	case len(req.Header["Content-Length"]) > 1:
		return apierrors.NewBadRequest("the request has more than one Content-Length")
	case req.URL.Scheme != "" && (req.ProtoMajor != 1 || req.URL.Scheme != "http" && req.URL.Scheme != "https"):
		return apierrors.NewBadRequest("the request target is unsupported")
	}
	return nil
}

// endIsInDoubt is true for requests whose end another hop may have parsed differently. RFC 9112, section 6.1, requires
// that the connection is closed after a request with both a length and chunks (CL.TE, TE.CL), and after chunks in
// HTTP/1.0. net/http removes the header that it does not use before the proxy can see it. So this is true for every
// request with chunks, and every one over HTTP/1.0.
func endIsInDoubt(req *http.Request) bool {
	return req.ProtoMajor == 1 && (req.ProtoMinor == 0 || len(req.TransferEncoding) > 0)
}

// cleanHeader removes headers about other hops, which a client can set to anything. It also removes headers that a hop
// which reads "_" as "-" could mistake for those of the proxy, except Impersonate-Extra-KEY, whose key the user chose.
// HTTP2-Settings belongs to h2c, which is not supported.
func cleanHeader(h http.Header) {
	for name := range h {
		lower, folded := strings.ToLower(name), request.Fold(name)
		chosen := strings.HasPrefix(lower, "impersonate-extra-") || strings.HasPrefix(lower, "x-remote-extra-")
		switch {
		case lower != folded && !chosen && request.IsIdentityHeader(folded),
			strings.HasPrefix(folded, "x-forwarded-"),
			folded == "x-real-ip", folded == "forwarded", folded == "http2-settings":
			delete(h, name)
		}
	}
}

// upgradeOf returns the protocol to which the client wants to upgrade, in lower case, or "".
func upgradeOf(req *http.Request) (string, error) {
	if !request.WantsUpgrade(req.Header) {
		return "", nil
	}
	protocols := req.Header.Values("Upgrade")
	if len(protocols) == 0 {
		return "", nil
	}
	protocol := strings.ToLower(strings.TrimSpace(protocols[0]))
	if len(protocols) > 1 || protocol != "spdy/3.1" && protocol != "websocket" {
		return "", apierrors.NewBadRequest(fmt.Sprintf("upgrade to %q is not supported: only SPDY/3.1 and websocket are",
			request.Shown(strings.Join(protocols, ", "))))
	}
	if req.ContentLength != 0 {
		return "", apierrors.NewBadRequest("a request to switch protocols must not have a body")
	}
	if protocol == "websocket" {
		return protocol, checkBrowser(req)
	}
	return protocol, nil
}

// checkBrowser refuses a WebSocket that a page of another site may have opened: browsers send cookies and client
// certificates along, without a preflight request and without asking the user.
func checkBrowser(req *http.Request) error {
	refuse := func(why string) error {
		return request.StatusError(http.StatusForbidden, metav1.StatusReasonForbidden, "refused a websocket "+why)
	}
	if len(req.Header.Values("Cookie")) > 0 {
		return refuse("with cookies")
	}
	for _, origin := range req.Header.Values("Origin") {
		parsed, err := url.Parse(origin)
		// The scheme is ignored: some clients send http, and only this proxy listens on its port. Kubernetes' own tests
		// send http://localhost, which no page of another origin does.
		ours := err == nil && (parsed.Host == "localhost" ||
			strings.EqualFold(withoutDefaultPort(parsed.Host), withoutDefaultPort(req.Host)))
		if !ours {
			return refuse(fmt.Sprintf("from the foreign origin %q", request.Shown(origin)))
		}
	}
	return nil
}

func withoutDefaultPort(host string) string { return strings.TrimSuffix(host, ":443") }

// readRequest parses the request info from the path, as the API server does. It refuses ambiguous paths.
func readRequest(next http.Handler, r apirequest.RequestInfoResolver, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, err := infoOf(req, r)
		if err != nil {
			request.WriteStatus(w, req, s, err)
			return
		}
		state := request.From(req.Context())
		state.LongRunning, state.Verb = isLongRunning(info), info.Verb
		next.ServeHTTP(w, req.WithContext(apirequest.WithRequestInfo(req.Context(), info)))
	})
}

func infoOf(req *http.Request, resolver apirequest.RequestInfoResolver) (*apirequest.RequestInfo, error) {
	if !strings.HasPrefix(req.URL.Path, "/") {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("path %q does not begin with /", request.Shown(req.URL.Path)))
	}
	info, err := resolver.NewRequestInfo(req)
	if err != nil {
		return nil, apierrors.NewBadRequest("the request path cannot be parsed")
	}
	if err := checkPath(req.URL.EscapedPath(), proxiedFrom(info)); err != nil {
		return nil, err
	}
	return info, checkSelectors(req.URL, info.Verb)
}

// checkSelectors refuses long selectors. The API server parses a selector several times for each request, which takes 8
// ms and 700 kB for each 10 kB. The resolver has not parsed these selectors.
func checkSelectors(u *url.URL, verb string) error {
	if verb != "list" && verb != "watch" && verb != "deletecollection" {
		return nil // a parameter of another program, or without effect
	}
	if n := request.LongSelector(u); n > maxSelector {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"a selector has %d bytes; the limit is %d: request fewer values at a time, or omit it", n, maxSelector,
		))
	}
	return nil
}

// proxiedFrom returns how many path segments belong to Kubernetes when the rest is the path of a program behind the
// proxy subresource of a pod, service or node. It is zero when all segments belong to Kubernetes.
func proxiedFrom(info *apirequest.RequestInfo) int {
	if !info.IsResourceRequest || info.Subresource != "proxy" || info.APIGroup != "" || info.APIPrefix != "api" {
		return 0
	}
	// api/v1/nodes/NAME/proxy, api/v1/namespaces/NAMESPACE/pods/NAME/proxy
	switch {
	case info.Resource == "nodes" && info.Namespace == "":
		return 5
	case info.Resource == "pods" || info.Resource == "services":
		return 7
	}
	return 0
}

// checkPath refuses empty segments, dots and encoded slashes in an escaped path. If kubernetes is not zero, only that
// many segments belong to Kubernetes; in the rest, the path of another program, only dots are refused.
func checkPath(escaped string, kubernetes int) error {
	segments := strings.Split(strings.TrimPrefix(escaped, "/"), "/")
	last := len(segments) - 1
	for i, segment := range segments {
		ours := kubernetes == 0 || i < kubernetes
		plain, err := url.PathUnescape(segment)
		if err != nil || slices.ContainsFunc(strings.FieldsFunc(plain, isSlash), isDots) ||
			ours && (segment == "" && i != last || strings.ContainsFunc(plain, isForeign)) {
			return apierrors.NewBadRequest(fmt.Sprintf("path %q is not canonical", request.Shown(escaped)))
		}
	}
	return nil
}

// isForeign is true for characters that no Kubernetes path segment contains.
func isForeign(r rune) bool      { return isSlash(r) || r < ' ' || r == 0x7f }
func isSlash(r rune) bool        { return r == '/' || r == '\\' }
func isDots(segment string) bool { return segment == "." || segment == ".." }

// isLongRunning is true for requests without a time limit.
func isLongRunning(info *apirequest.RequestInfo) bool {
	return info.IsResourceRequest && (info.Verb == "watch" || info.Verb == "proxy" ||
		slices.Contains([]string{"attach", "exec", "proxy", "log", "portforward"}, info.Subresource))
}

// refuseLeftovers refuses requests that still have an Impersonate- header after nested impersonation. The filter leaves
// headers that are unknown or have no value. They must not reach the API server together with those of the proxy.
func refuseLeftovers(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for name := range req.Header {
			if strings.HasPrefix(request.Fold(name), "impersonate-") {
				request.WriteStatus(w, req, s, apierrors.NewBadRequest(
					fmt.Sprintf("header %q is not a known impersonation header, or has no value", request.Shown(name))))
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}
