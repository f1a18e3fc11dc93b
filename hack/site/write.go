package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"os"
	"path/filepath"
	"strings"
)

//go:embed assets
var assets embed.FS

// view is what the template shows.
type view struct {
	Title, Up, Address string
	Menu               []group
	Body               template.HTML
}

// Title and Address are for the template.
func (p *page) Title() string   { return p.title }
func (p *page) Address() string { return p.address }

func (s *site) write(out string) error {
	layout, err := template.ParseFS(assets, "assets/page.html")
	if err != nil {
		return err
	}
	put := func(name string, content []byte) error {
		file := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, content, 0o644)
	}
	menu := s.menu()
	show := func(name, title string, body []byte) error {
		var html bytes.Buffer
		err := layout.Execute(&html, view{
			Title: title, Address: name, Up: strings.Repeat("../", strings.Count(name, "/")), Menu: menu,
			Body: template.HTML(body),
		})
		if err != nil {
			return err
		}
		return put(name, html.Bytes())
	}
	var index []section
	for _, p := range s.pages {
		var body bytes.Buffer
		if err := markdown.Renderer().Render(&body, p.source, p.document); err != nil {
			return err
		}
		if err := show(p.address, p.title, scrollable(body.Bytes())); err != nil {
			return err
		}
		index = append(index, p.sections...)
	}
	decisions := bytes.NewBufferString("<h1>Decisions</h1>\n<ul>\n")
	for _, p := range menu[len(menu)-1].Pages {
		decisions.WriteString(`<li><a href="../` + p.address + `">` + template.HTMLEscapeString(p.title) + "</a></li>\n")
	}
	decisions.WriteString("</ul>\n")
	if err := show("adr/index.html", "Decisions", decisions.Bytes()); err != nil {
		return err
	}
	found, err := json.Marshal(index)
	if err != nil {
		return err
	}
	// A script, and not JSON, so that the search works in files that no server serves.
	if err := put("search-index.js", append([]byte("window.sections = "), found...)); err != nil {
		return err
	}
	for _, name := range []string{"site.css", "search.js"} {
		content, err := assets.ReadFile("assets/" + name)
		if err != nil {
			return err
		}
		if err := put(name, content); err != nil {
			return err
		}
	}
	for name := range s.images {
		content, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if err := put(strings.TrimPrefix(name, "docs/"), content); err != nil {
			return err
		}
	}
	return nil
}

// scrollable lets tables and code scroll by themselves, so that the page does not on a phone. What scrolls can be reached
// with the keyboard.
func scrollable(body []byte) []byte {
	body = bytes.ReplaceAll(body, []byte("<table>"), []byte(`<div class="wide" tabindex="0"><table>`))
	body = bytes.ReplaceAll(body, []byte("</table>"), []byte("</table></div>"))
	return bytes.ReplaceAll(body, []byte("<pre>"), []byte(`<pre tabindex="0">`))
}
