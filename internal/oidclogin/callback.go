package oidclogin

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
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

// page is the page that the browser shows at the end of a login.
type page struct {
	user, cluster, issuer string
	problem               error // if the login failed
}

// pageStyle uses no external resource: the browser may reach only the issuer, and no third party may learn of the
// login.
const pageStyle = `:root{color-scheme:light dark;--back:#f4f6f8;--card:#fff;--text:#1c2733;--faint:#5b6b7b;--line:#dde3e9;--good:#1a7f4b;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--back:#11161c;--card:#1a222c;--text:#e6ebf0;--faint:#9fb0c0;--line:#2c3947;--good:#4fc98a;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;min-height:100vh;display:flex;align-items:center;justify-content:center;padding:1.5rem;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,sans-serif}
main{width:100%;max-width:32rem;padding:2.5rem 2rem;background:var(--card);border:1px solid var(--line);border-radius:1rem;text-align:center}
svg{width:4rem;height:4rem;fill:none;stroke-width:4;stroke-linecap:round;stroke-linejoin:round}
.good svg{stroke:var(--good)}.bad svg{stroke:var(--bad)}
h1{margin:1rem 0 .5rem;font-size:1.5rem;line-height:1.25}
p{margin:.5rem 0;overflow-wrap:anywhere}
dl{margin:1.5rem 0 0;padding-top:1.25rem;border-top:1px solid var(--line);display:grid;grid-template-columns:auto 1fr;gap:.4rem 1rem;text-align:left}
dt{color:var(--faint)}dd{margin:0;overflow-wrap:anywhere;font-weight:600}
.faint{color:var(--faint)}`

const (
	tick  = `<svg viewBox="0 0 48 48" aria-hidden="true"><circle cx="24" cy="24" r="21"/><path d="M14 25l7 7 13-15"/></svg>`
	cross = `<svg viewBox="0 0 48 48" aria-hidden="true"><circle cx="24" cy="24" r="21"/><path d="M17 17l14 14M31 17L17 31"/></svg>`
)

// writePage writes the page as the response. It escapes by hand, because html/template makes the linker keep every
// exported method, a quarter of the program's size.
func writePage(w http.ResponseWriter, status int, p page) {
	hash := sha256.Sum256([]byte(pageStyle))
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set(
		"Content-Security-Policy",
		"default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(
			hash[:],
		)+"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	)
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(p.html())) // fails only if the browser is gone
}

func (p page) html() string {
	title, class, mark, body := "You are logged in", "good", tick, p.success()
	if p.problem != nil {
		title, class, mark, body = "You are not logged in", "bad", cross, p.failure()
	}
	return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>` + title + `</title>
<style>` + pageStyle + `</style>
</head>
<body>
<main class="` + class + `">
` + mark + `
<h1>` + title + `</h1>
` + body + `
</main>
</body>
</html>
`
}

func (p page) success() string {
	text := "you have been logged in and may now close this tab"
	if p.user != "" {
		text = "<strong>" + html.EscapeString(p.user) + "</strong>, " + text
	}
	var rows strings.Builder
	for _, row := range []struct{ name, value string }{{"User", p.user}, {"Cluster", p.cluster}, {"Issuer", p.issuer}} {
		if row.value != "" {
			rows.WriteString("<dt>" + row.name + "</dt><dd>" + html.EscapeString(row.value) + "</dd>\n")
		}
	}
	return "<p>" + text + "</p>\n<dl>\n" + rows.String() + "</dl>"
}

func (p page) failure() string {
	text := "<p>" + html.EscapeString(p.problem.Error()) + "</p>"
	if hint, ok := errors.AsType[interface {
		error
		Hint() string
	}](p.problem); ok && hint.Hint() != "" {
		text += "\n<p class=\"faint\">" + html.EscapeString(hint.Hint()) + "</p>"
	}
	return text + "\n<p class=\"faint\">You may close this tab. The terminal shows the same message.</p>"
}
