package kubeconfig

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// change replaces a part of the file. Encoding the whole file again would lose its layout.
type change struct {
	from, to int
	text     string
}

// editor edits the text of a kubeconfig.
type editor struct {
	content []byte
	root    *yaml.Node
	lines   []int // offset of each line
	changes []change
	tail    string // to append to the document
}

func newEditor(content []byte, root *yaml.Node) *editor {
	return &editor{content: content, root: root, lines: lineStarts(content)}
}

// apply applies the changes from the end, so that positions stay valid.
func (t *editor) apply() []byte {
	if t.tail != "" {
		end := t.end()
		if end > 0 && t.content[end-1] != '\n' {
			t.tail = t.lineEnd() + t.tail
		}
		t.changes = append(t.changes, change{end, end, t.tail})
	}
	// Of several changes at one position, the first one is first in the text.
	slices.Reverse(t.changes)
	slices.SortStableFunc(t.changes, func(a, b change) int { return cmp.Compare(b.from, a.from) })
	result := bytes.Clone(t.content)
	for _, c := range t.changes {
		result = slices.Replace(result, c.from, c.to, []byte(c.text)...)
	}
	return result
}

// edit returns content with the new CA bundle of the rotated entries.
func edit(content []byte, root *yaml.Node, entries []planned) ([]byte, error) {
	t := newEditor(content, root)
	for _, entry := range entries {
		if entry.Outcome != Rotated {
			continue
		}
		made, err := t.bundleChange(entry)
		if err != nil {
			return nil, fmt.Errorf("changing %s %q: %w", entry.Kind, entry.Name, err)
		}
		t.changes = append(t.changes, made)
	}
	return t.apply(), nil
}

func (t *editor) bundleChange(entry planned) (change, error) {
	encoded := base64.StdEncoding.EncodeToString(entry.to)
	_, list := field(t.root, entry.Kind+"s")
	var body *yaml.Node
	if at := named(list, entry.Name); at >= 0 {
		_, body = field(list.Content[at], entry.Kind)
	}
	if entry.Kind == kindUser {
		_, exec := field(body, "exec")
		_, args := field(exec, "args")
		if args == nil || entry.place.argument >= len(args.Content) {
			return change{}, errors.New(
				"finding the arguments of its credential plugin in the file: they are a YAML alias; write them out, or " +
					"recreate the kubeconfig",
			)
		}
		return t.replace(args.Content[entry.place.argument], entry.place.prefix+encoded)
	}
	const data = "certificate-authority-data"
	if _, value := field(body, data); value != nil {
		return t.replace(value, encoded)
	}
	key, server := field(body, "server")
	if server == nil {
		return change{}, errors.New("finding its server in the file")
	}
	at, err := t.position(key)
	if err != nil {
		return change{}, err
	}
	if flow(body) {
		return change{at, at, fmt.Sprintf("%q: %q, ", data, encoded)}, nil
	}
	start := t.lines[key.Line-1]
	indent := strings.Repeat(" ", utf8.RuneCount(t.content[start:at])) // the first key of a list item is after a dash
	end := "\n"
	if next := bytes.IndexByte(t.content[at:], '\n'); next > 0 && t.content[at+next-1] == '\r' {
		end = "\r\n"
	}
	return change{at, at, data + ": " + encoded + end + indent}, nil
}

// replace replaces the value of a scalar and keeps its style. The value must need no escaping.
func (t *editor) replace(scalar *yaml.Node, value string) (change, error) {
	if scalar.Kind != yaml.ScalarNode {
		return change{}, fmt.Errorf("line %d: it is a YAML alias; write it out, or recreate the kubeconfig", scalar.Line)
	}
	at, err := t.position(scalar)
	if err != nil {
		return change{}, err
	}
	quote := ""
	switch {
	case scalar.Style&yaml.DoubleQuotedStyle != 0:
		quote = `"`
	case scalar.Style&yaml.SingleQuotedStyle != 0:
		quote = `'`
	}
	if scalar.Tag == "!!null" { // nothing, ~ or null
		if rest := string(t.content[at:]); scalar.Value == "" || strings.HasPrefix(rest, scalar.Value) {
			return change{at, at + len(scalar.Value), " " + value}, nil
		}
	}
	old := quote + scalar.Value + quote
	if !bytes.HasPrefix(t.content[at:], []byte(old)) {
		return change{}, fmt.Errorf(
			"line %d: the value has a YAML anchor or is spread over several lines; write it on one line without an anchor, "+
				"or recreate the kubeconfig",
			scalar.Line,
		)
	}
	if value == "" {
		quote = `"`
	}
	return change{at, at + len(old), quote + value + quote}, nil
}

// position returns the byte offset of a node. The parser counts characters.
func (t *editor) position(node *yaml.Node) (int, error) {
	if node.Line < 1 || node.Line > len(t.lines) {
		return 0, fmt.Errorf("finding line %d", node.Line)
	}
	at := t.lines[node.Line-1]
	for range node.Column - 1 {
		if at >= len(t.content) {
			return 0, fmt.Errorf("finding line %d, column %d", node.Line, node.Column)
		}
		_, size := utf8.DecodeRune(t.content[at:])
		at += size
	}
	return at, nil
}

// lineStarts returns the byte offsets of all lines. Like the YAML parser, it ends lines at a line feed, a carriage
// return, and three rare Unicode characters.
func lineStarts(content []byte) []int {
	starts := []int{0}
	for i := 0; i < len(content); {
		r, size := utf8.DecodeRune(content[i:])
		if r == '\r' && i+1 < len(content) && content[i+1] == '\n' {
			size = 2
		}
		i += size
		if slices.Contains([]rune{'\n', '\r', '\u0085', '\u2028', '\u2029'}, r) {
			starts = append(starts, i)
		}
	}
	return starts
}

// field returns the key and the value of a mapping's field, or nil.
func field(mapping *yaml.Node, name string) (key, value *yaml.Node) {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}

// named returns the index of the list item with this name, or -1. It is unique: clientcmd rejects duplicates.
func named(list *yaml.Node, name string) int {
	if list == nil || list.Kind != yaml.SequenceNode {
		return -1
	}
	return slices.IndexFunc(list.Content, func(item *yaml.Node) bool {
		_, value := field(item, "name")
		return value != nil && value.Value == name
	})
}
