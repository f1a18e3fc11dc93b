package oidclogin

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"html"
	"net/http"
	"strings"
)

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
	return text + "\n<p class=\"faint\">You may close this tab. The terminal says the same.</p>"
}
