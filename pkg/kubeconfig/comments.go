package kubeconfig

import (
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// withComments returns the text of a new item with the comments of the old one whose lines still exist.
func withComments(item string, before []byte) string {
	var was, is yaml.Node
	if yaml.Unmarshal(before, &was) != nil || yaml.Unmarshal([]byte(item), &is) != nil {
		return item
	}
	lines := strings.SplitAfter(item, "\n")
	above, below := map[int]string{}, map[int]string{} // by line, from 1
	places := map[string]commented{}
	walk(&is, "", func(path string, at commented) { places[path] = at })
	walk(&was, "", func(path string, old commented) {
		at, ok := places[path]
		if !ok {
			return
		}
		column := at.node.Column - 1
		if at.value == nil {
			column -= len("- ")
		}
		indent := strings.Repeat(" ", max(column, 0))
		above[at.node.Line] += commentLines(old.node.HeadComment, indent)
		below[at.last()] = commentLines(old.node.FootComment, indent) + below[at.last()]
		if comment := old.line(); comment != "" &&
			(at.value == nil || at.last() == at.node.Line || at.value.Line > at.node.Line) {
			lines[at.node.Line-1] = strings.TrimSuffix(lines[at.node.Line-1], "\n") + " " + comment + "\n"
		}
	})
	var out strings.Builder
	for i, line := range lines {
		if line != "" {
			out.WriteString(above[i+1] + line + below[i+1])
		}
	}
	var with, without any
	if yaml.Unmarshal([]byte(out.String()), &with) != nil || yaml.Unmarshal([]byte(item), &without) != nil ||
		!reflect.DeepEqual(with, without) {
		return item
	}
	return out.String()
}

// commented is a field of a mapping or an item of a list.
type commented struct {
	node  *yaml.Node // the key, or the item
	value *yaml.Node // nil for an item
}

func (p commented) line() string {
	if p.node.LineComment == "" && p.value != nil {
		return p.value.LineComment
	}
	return p.node.LineComment
}

// last returns the last line of the field or item.
func (p commented) last() int {
	last := p.node.Line
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		last = max(last, n.Line)
		for _, child := range n.Content {
			visit(child)
		}
	}
	visit(p.node)
	if p.value != nil {
		visit(p.value)
	}
	return last
}

// walk calls visit for all fields and items below node. A path contains a field's key, and a list item's flag, name or
// index.
func walk(node *yaml.Node, path string, visit func(path string, at commented)) {
	switch node.Kind {
	case yaml.DocumentNode:
		for _, child := range node.Content {
			walk(child, path, visit)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			below := path + "/" + key.Value
			visit(below, commented{key, value})
			walk(value, below, visit)
		}
	case yaml.SequenceNode:
		for i, item := range node.Content {
			name := strconv.Itoa(i)
			if flag, _, _ := strings.Cut(item.Value, "="); item.Kind == yaml.ScalarNode {
				name = flag
			} else if _, named := field(item, "name"); named != nil && path != "" {
				name = named.Value
			}
			below := path + "/" + name
			visit(below, commented{node: item})
			walk(item, below, visit)
		}
	case yaml.ScalarNode, yaml.AliasNode:
	}
}

// commentLines indents the lines of a comment.
func commentLines(comment, indent string) string {
	var out strings.Builder
	for line := range strings.Lines(comment) {
		if line = strings.TrimSpace(line); line != "" {
			out.WriteString(indent + line + "\n")
		}
	}
	return out.String()
}
