package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// repository is the link in the header, and the base of links to files that are not pages.
const repository = "https://github.com/pinniped-toolkit/pinniped"

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
)

// site has all pages, by their path in the repository.
type site struct {
	root   string
	pages  []*page
	byPath map[string]*page
	images map[string]bool // used in pages
}

type page struct {
	path     string // docs/howto/rotate-ca.md
	address  string // howto/rotate-ca.html
	title    string
	source   []byte
	document ast.Node
	anchors  map[string]bool
	contents []heading
	sections []section

	before, after *page // neighbours in the menu
}

// heading is a line of a page's table of contents.
type heading struct {
	Anchor, Title string
	Level         int
}

// section is a search result: a heading and the text below it.
type section struct {
	Page    string `json:"p"` // title of the page
	Heading string `json:"h"`
	Address string `json:"a"`
	Text    string `json:"t"`
}

func load(root string) (*site, error) {
	s := &site{root: root, byPath: map[string]*page{}, images: map[string]bool{}}
	sources, err := commandPages()
	if err != nil {
		return nil, err
	}
	paths := append([]string{"README.md", "CONTRIBUTING.md"}, slices.Sorted(maps.Keys(sources))...)
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(file string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(file, ".md") {
			relative, _ := filepath.Rel(root, file)
			paths = append(paths, filepath.ToSlash(relative))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range paths {
		source, generated := sources[name]
		if !generated {
			if source, err = os.ReadFile(filepath.Join(root, filepath.FromSlash(name))); err != nil {
				return nil, err
			}
		}
		p := &page{path: name, source: source, address: address(name), anchors: map[string]bool{}}
		p.document = markdown.Parser().Parse(text.NewReader(source))
		p.read()
		s.pages, s.byPath[name] = append(s.pages, p), p
	}
	return s, nil
}

// address returns the path of a page in the site.
func address(name string) string {
	if name == "README.md" {
		return "index.html"
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(name, "docs/"), ".md")) + ".html"
}

// read collects headings and text.
func (p *page) read() {
	p.title = p.path
	for next := p.document.FirstChild(); next != nil; next = next.NextSibling() {
		node, ok := next.(*ast.Heading)
		if !ok {
			if _, comment := next.(*ast.HTMLBlock); len(p.sections) > 0 && !comment {
				last := &p.sections[len(p.sections)-1]
				last.Text = strings.TrimSpace(last.Text + " " + plain(next, p.source))
			}
			continue
		}
		words, at := plain(node, p.source), p.address
		id, _ := node.AttributeString("id")
		name := string(id.([]byte)) //nolint:forcetypeassert // set by the parser
		p.anchors[name] = true
		if node.Level == 1 {
			p.title = words
		} else {
			at += "#" + name
			p.contents = append(p.contents, heading{name, words, node.Level})
		}
		p.sections = append(p.sections, section{Page: p.title, Heading: words, Address: at})
	}
}

// plain returns the text of a node.
func plain(node ast.Node, source []byte) string {
	var words bytes.Buffer
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			if n.Type() == ast.TypeBlock {
				words.WriteByte(' ')
			}
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			words.Write(n.Segment.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				words.WriteByte(' ')
			}
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			words.Write(n.Lines().Value(source))
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(words.String()), " ")
}

// link rewrites links between documents to links between pages, and reports broken ones.
func (s *site) link() error {
	var broken []error
	for _, p := range s.pages {
		_ = ast.Walk(p.document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			if !entering {
				return ast.WalkContinue, nil
			}
			var destination *[]byte
			image := false
			switch n := n.(type) {
			case *ast.Link:
				destination = &n.Destination
			case *ast.Image:
				destination, image = &n.Destination, true
			default:
				return ast.WalkContinue, nil
			}
			to, err := s.resolve(p, string(*destination), image)
			if err != nil {
				broken = append(broken, fmt.Errorf("%s: link to %q: %w", p.path, *destination, err))
				return ast.WalkContinue, nil
			}
			*destination = []byte(to)
			return ast.WalkContinue, nil
		})
	}
	return errors.Join(broken...)
}

func (s *site) resolve(from *page, destination string, image bool) (string, error) {
	to, err := url.Parse(destination)
	if err != nil || to.IsAbs() {
		return destination, err
	}
	target := from
	if to.Path != "" {
		name := path.Join(path.Dir(from.path), to.Path)
		if target = s.byPath[name]; target == nil {
			info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(name)))
			switch {
			case err != nil:
				return "", errors.New("there is no such file")
			case image:
				s.images[name] = true
				return relative(from.address, strings.TrimPrefix(name, "docs/")), nil
			case name == "docs/adr" && info.IsDir():
				return relative(from.address, "adr/index.html"), nil
			}
			return repository + "/blob/main/" + name, nil
		}
	}
	if to.Fragment != "" && !target.anchors[to.Fragment] {
		return "", errors.New("there is no such heading")
	}
	address := relative(from.address, target.address)
	if to.Fragment != "" {
		address += "#" + to.Fragment
	}
	return address, nil
}

// relative returns the relative path from one file of the site to another.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")) + to
}
