package oidclogin

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxForm is the maximum size, in bytes, of the form that the browser posts.
const maxForm = 64 << 10

// serve starts the server on loopback to which the browser brings the issuer's response. It sends the responses to a to
// answers. It rejects other requests without ending the login: any web page and any local program can send requests
// here. stop stops the server, with time for the browser to load the final page.
func (p *provider) serve(
	ctx context.Context,
	listener net.Listener,
	a *authorization,
	answers chan<- answer,
) (stop func()) {
	mux := http.NewServeMux()
	mux.HandleFunc(
		callbackPath,
		func(w http.ResponseWriter, r *http.Request) { p.callback(ctx, w, r, listener, a, answers) },
	)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, MaxHeaderBytes: maxForm,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { _ = server.Serve(listener) }() // always ErrServerClosed
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close()
		}
	}
}

func (p *provider) callback(
	ctx context.Context,
	w http.ResponseWriter,
	r *http.Request,
	listener net.Listener,
	a *authorization,
	answers chan<- answer,
) {
	if !forUs(r.Host, listener.Addr()) {
		http.Error(w, "the Host header is wrong", http.StatusForbidden) // DNS rebinding
		return
	}
	var values url.Values
	switch r.Method {
	case http.MethodOptions:
		p.preflight(w, r)
		return
	case http.MethodGet:
		values = r.URL.Query()
	case http.MethodPost:
		w.Header().Set("Access-Control-Allow-Origin", p.origin())
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			http.Error(w, "this is not a form", http.StatusBadRequest)
			return
		}
		values = r.PostForm
	default:
		w.Header().Set("Allow", "GET, POST, OPTIONS")
		http.Error(w, "a login response must be a GET or a POST", http.StatusMethodNotAllowed)
		return
	}
	code, err := p.codeFrom(a, values)
	if errors.Is(err, errNotOurs) {
		writePage(w, http.StatusForbidden, page{problem: err})
		return
	}
	result := make(chan page, 1)
	select {
	case answers <- answer{code: code, err: err, page: result}:
	case <-ctx.Done():
		return
	case <-r.Context().Done():
		return
	}
	select {
	case shown := <-result:
		status := http.StatusOK
		if shown.problem != nil {
			status = http.StatusBadRequest
		}
		writePage(w, status, shown)
	case <-r.Context().Done():
	}
}

// preflight permits only the issuer's own page to post its response from a script (CORS).
func (p *provider) preflight(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Origin") == "" {
		http.Error(w, "no Origin header", http.StatusBadRequest)
		return
	}
	header := w.Header()
	header.Set("Access-Control-Allow-Origin", p.origin())
	header.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	header.Set("Access-Control-Allow-Headers", "Content-Type")
	header.Set("Access-Control-Allow-Credentials", "false")
	header.Set("Access-Control-Allow-Private-Network", "true")
	header.Set("Vary", "*")
	w.WriteHeader(http.StatusNoContent)
}

// origin returns the origin of the issuer's pages.
func (p *provider) origin() string {
	address, err := url.Parse(p.metadata.AuthorizationEndpoint)
	if err != nil {
		return "null"
	}
	return address.Scheme + "://" + address.Host
}

// forUs reports whether host names the listener.
func forUs(host string, address net.Addr) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, "80"
	}
	_, own, err := net.SplitHostPort(address.String())
	return err == nil && port == own && (name == "127.0.0.1" || name == "::1" || name == "localhost")
}
