package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// FuzzRequest sends requests of jane, who may not impersonate, through the whole chain. Every forwarded request must be
// made as jane, and be the one that was authorized.
func FuzzRequest(f *testing.F) {
	for _, seed := range hostileHTTP1 {
		f.Add(crlf.Replace(seed.request), "")
	}
	for text, name := range map[string]string{
		"GET /api/v1/namespaces/d/pods/x/exec?command=ls HTTP/1.1\nHost: proxy\nConnection: Upgrade\nUpgrade: websocket\n\n": "Impersonate_User",
		"GET /api/v1/namespaces/d/services/x/proxy/a%2fb HTTP/1.1\nHost: proxy\nX-Remote-User: root\n\n":                     "impersonate-extra-a",
		"DELETE /apis/apps/v1/deployments?fieldSelector=a=b HTTP/1.1\nHost: proxy\nImpersonate-User: root\n\n":               "Authorization",
		"GET /api/v1/pods?fieldSelector=metadata.name%3Da&limit=x HTTP/1.1\nHost: proxy\n\n":                                 "",
	} {
		f.Add(crlf.Replace(text), name)
	}

	p := newProxy(f)
	p.api.allow = noImpersonation
	listener := listenHere(f)
	_ = listener.Close()
	options := p.options(listener, p.api.config(agentToken), p.api.config(""), p.token)
	options.AllowTTL, options.DenyTTL = time.Nanosecond, time.Nanosecond
	server := must.Get(New(f.Context(), options))(f)
	leaf := must.Get(x509.ParseCertificate(p.jane(f).Certificate[0]))(f)
	resolver := &apirequest.RequestInfoFactory{ // the API server's
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		if name != "" { // as HTTP/2 would deliver it, or something worse
			req.Header[name] = []string{"root"}
		}
		req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
		req.RemoteAddr = "127.0.0.1:1"
		p.api.set(func() { p.api.recorded, p.api.reviews = nil, nil })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		func() {
			// net/http ends a broken response like this, if the input causes one.
			defer func() {
				r := recover()
				if err, _ := r.(error); r != nil && !errors.Is(err, http.ErrAbortHandler) {
					panic(r)
				}
			}()
			server.http.Handler.ServeHTTP(httptest.NewRecorder(), req.WithContext(ctx))
		}()
		for _, one := range p.api.requests() {
			checkIdentity(t, one, carried("jane"))
			offered := strings.Join(one.Header["Sec-Websocket-Protocol"], ",")
			if strings.Contains(offered, "base64url.bearer.authorization.k8s.io.") {
				t.Error("a token among the subprotocols")
			}
			target, err := url.ParseRequestURI(one.URI)
			if err != nil {
				t.Fatalf("%q at the API server: %v", one.URI, err)
			}
			info, err := resolver.NewRequestInfo(
				(&http.Request{Method: one.Method, URL: target, Header: one.Header}).WithContext(ctx),
			)
			if err != nil {
				t.Fatalf("%q at the API server: %v", one.URI, err)
			}
			if !info.IsResourceRequest && slices.Contains([]string{"/healthz", "/readyz", "/livez"}, info.Path) {
				continue // allowed without a review
			}
			p.api.mu.Lock()
			reviews := slices.Clone(p.api.reviews)
			p.api.mu.Unlock()
			authorized := false
			for _, review := range reviews {
				if r := review.ResourceAttributes; r != nil {
					authorized = authorized ||
						info.IsResourceRequest && r.Verb == info.Verb && r.Group == info.APIGroup && r.Version == info.APIVersion &&
							r.Resource == info.Resource && r.Subresource == info.Subresource && r.Namespace == info.Namespace &&
							(r.Name == info.Name || r.Name == "")
				} else {
					n := review.NonResourceAttributes
					authorized = authorized || !info.IsResourceRequest && n.Verb == info.Verb && n.Path == info.Path
				}
			}
			if !authorized {
				t.Errorf("%s %s at the API server was not authorized: it is %+v, asked was %+v", one.Method, one.URI, info, reviews)
			}
		}
	})
}
