package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
	extensionast "github.com/yuin/goldmark/extension/ast"
)

//go:embed assets
var assets embed.FS

// view is the data for the template.
type view struct {
	Title, Up, Address, Repository string
	Menu                           []group
	Contents                       []heading
	Before, After                  *page
	Body                           template.HTML
}

// Title and Address are for the template.
func (p *page) Title() string   { return p.title }
func (p *page) Address() string { return p.address }

// Has reports whether a page is in the group.
func (g group) Has(address string) bool {
	return slices.ContainsFunc(g.Pages, func(p *page) bool { return p.address == address })
}

func (s *site) write(out string, menu []group) error {
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
	show := func(p *page, body []byte) error {
		var html bytes.Buffer
		err := layout.Execute(&html, view{
			Title: p.title, Address: p.address, Up: strings.Repeat("../", strings.Count(p.address, "/")), Menu: menu,
			Repository: repository, Contents: p.contents, Before: p.before, After: p.after, Body: template.HTML(body),
		})
		if err != nil {
			return err
		}
		return put(p.address, html.Bytes())
	}
	var index []section
	for _, p := range s.pages {
		label(p)
		var body bytes.Buffer
		if err := markdown.Renderer().Render(&body, p.source, p.document); err != nil {
			return err
		}
		if err := show(p, scrollable(body.Bytes())); err != nil {
			return err
		}
		index = append(index, p.sections...)
	}
	decisions := bytes.NewBufferString("<h1>Decisions</h1>\n<ul>\n")
	for _, p := range menu[len(menu)-1].Pages {
		decisions.WriteString(`<li><a href="../` + p.address + `">` + template.HTMLEscapeString(p.title) + "</a></li>\n")
	}
	decisions.WriteString("</ul>\n")
	if err := show(&page{address: "adr/index.html", title: "Decisions"}, decisions.Bytes()); err != nil {
		return err
	}
	found, err := json.Marshal(index)
	if err != nil {
		return err
	}
	// It is a script, and not JSON, so that the search works without a server.
	if err := put("search-index.js", append([]byte("window.sections = "), found...)); err != nil {
		return err
	}
	for _, name := range []string{"site.css", "page.js", "search.js"} {
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

// label adds the heading of its column to each table cell, because phones show rows as lists.
func label(p *page) {
	_ = ast.Walk(p.document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		table, ok := n.(*extensionast.Table)
		if !ok || !entering {
			return ast.WalkContinue, nil
		}
		var columns []string
		for cell := table.FirstChild().FirstChild(); cell != nil; cell = cell.NextSibling() {
			columns = append(columns, plain(cell, p.source))
		}
		for row := table.FirstChild().NextSibling(); row != nil; row = row.NextSibling() {
			for cell, i := row.FirstChild(), 0; cell != nil; cell, i = cell.NextSibling(), i+1 {
				cell.SetAttributeString("data-column", []byte(template.HTMLEscapeString(columns[i])))
			}
		}
		return ast.WalkSkipChildren, nil
	})
}

// scrollable lets tables and code scroll, so that the page does not on a phone. They are reachable by keyboard.
func scrollable(body []byte) []byte {
	return []byte(strings.NewReplacer(
		"<table>", `<div class="wide" tabindex="0"><table>`, "</table>", "</table></div>",
		"<pre>", `<div class="code"><pre tabindex="0">`, "</pre>", "</pre></div>",
	).Replace(string(body)))
}
