package main

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// order is the heading in README.md below which all pages are linked, in the order of the menu.
const order = "Documentation"

// group is a part of the menu.
type group struct {
	Title string
	Pages []*page
}

// menu returns the pages that README.md links to, in its order and under its headings. A page without a link is an
// error, except commands and decisions, which have their own index.
func (s *site) menu() ([]group, error) {
	readme := s.byPath["README.md"]
	var groups []group
	listed := map[*page]bool{}
	add := func(p *page) {
		if p != nil && !listed[p] {
			listed[p] = true
			last := &groups[len(groups)-1]
			last.Pages = append(last.Pages, p)
		}
	}
	within := false
	for node := readme.document.FirstChild(); node != nil; node = node.NextSibling() {
		if heading, ok := node.(*ast.Heading); ok {
			title := plain(heading, readme.source)
			if within = within && heading.Level > 2 || title == order; within && heading.Level > 2 {
				groups = append(groups, group{Title: title})
				add(readme)
			}
			continue
		}
		if !within || len(groups) == 0 {
			continue
		}
		s.eachLinked(node, add)
	}
	if len(groups) > 0 { // pages that README.md links to elsewhere, after README.md itself
		groups = append(groups, group{})
		s.eachLinked(readme.document, add)
		others := groups[len(groups)-1].Pages
		groups = groups[:len(groups)-1]
		groups[0].Pages = slices.Insert(groups[0].Pages, 1, others...)
	}
	commands, decisions := group{Title: "Commands"}, group{Title: "Decisions"}
	var missing []error
	for _, p := range s.pages {
		switch {
		case listed[p]:
		case strings.HasPrefix(p.path, commandsFolder+"/"):
			commands.Pages = append(commands.Pages, p)
		case strings.HasPrefix(p.path, "docs/adr/"):
			decisions.Pages = append(decisions.Pages, p)
		default:
			missing = append(missing, fmt.Errorf("%s: README.md has no link to it", p.path))
		}
	}
	slices.SortFunc(commands.Pages, func(a, b *page) int { return strings.Compare(a.title, b.title) })
	groups = append(groups, commands, decisions)
	var last *page
	for _, one := range groups {
		for _, p := range one.Pages {
			if p.before = last; last != nil {
				last.after = p
			}
			last = p
		}
	}
	return groups, errors.Join(missing...)
}

// eachLinked calls add for each page that a node links to, and with nil for other links.
func (s *site) eachLinked(node ast.Node, add func(*page)) {
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if link, ok := n.(*ast.Link); ok && entering {
			add(s.byPath[path.Clean(string(link.Destination))])
		}
		return ast.WalkContinue, nil
	})
}
