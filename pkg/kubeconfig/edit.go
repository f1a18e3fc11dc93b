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

// edit returns content with the new CA bundle of the rotated entries. It sets absent in entries that had none.
func edit(content []byte, root *yaml.Node, entries []planned) ([]byte, error) {
	lines := lineStarts(content)
	var changes []change
	for i := range entries {
		entry := &entries[i]
		if entry.Outcome != Rotated {
			continue
		}
		made, err := entryChange(content, lines, root, entry)
		if err != nil {
			return nil, fmt.Errorf("changing %s %q: %w", entry.Kind, entry.Name, err)
		}
		changes = append(changes, made)
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(b.from, a.from) })
	result := bytes.Clone(content)
	for _, c := range changes { // from the end, so that positions stay valid
		result = slices.Replace(result, c.from, c.to, []byte(c.text)...)
	}
	return result, nil
}

func entryChange(content []byte, lines []int, root *yaml.Node, entry *planned) (change, error) {
	encoded := base64.StdEncoding.EncodeToString(entry.to)
	item := named(root, entry.Kind+"s", entry.Name)
	_, body := field(item, entry.Kind)
	if entry.Kind == kindUser {
		_, exec := field(body, "exec")
		_, args := field(exec, "args")
		if args == nil || entry.argument >= len(args.Content) {
			return change{}, errors.New(
				"finding the arguments of its credential plugin in the file: they are a YAML alias; write them out, or " +
					"recreate the kubeconfig",
			)
		}
		return replace(content, lines, args.Content[entry.argument], entry.prefix+encoded)
	}
	if key, data := field(body, caDataField); data != nil {
		if next := following(body, key); entry.absent && next != nil {
			return remove(content, lines, key, next)
		}
		entry.absent = false
		return replace(content, lines, data, encoded)
	}
	entry.absent = true
	key, server := field(body, "server")
	if server == nil {
		return change{}, errors.New("finding its server in the file")
	}
	return insertNextTo(content, lines, body, key, encoded)
}

const caDataField = "certificate-authority-data"

// following returns the key after key in a mapping, or nil.
func following(mapping, key *yaml.Node) *yaml.Node {
	for i := 0; i+2 < len(mapping.Content); i += 2 {
		if mapping.Content[i] == key {
			return mapping.Content[i+2]
		}
	}
	return nil
}

// remove removes a key and its value from a mapping: everything up to the next key.
func remove(content []byte, lines []int, key, next *yaml.Node) (change, error) {
	from, err := position(content, lines, key)
	if err != nil {
		return change{}, err
	}
	to, err := position(content, lines, next)
	if err != nil {
		return change{}, err
	}
	return change{from: from, to: to}, nil
}

// insertNextTo adds certificate-authority-data before a key of the same mapping.
func insertNextTo(content []byte, lines []int, mapping, key *yaml.Node, encoded string) (change, error) {
	at, err := position(content, lines, key)
	if err != nil {
		return change{}, err
	}
	if mapping.Style&yaml.FlowStyle != 0 {
		return change{at, at, fmt.Sprintf("%q: %q, ", caDataField, encoded)}, nil
	}
	start := lines[key.Line-1]
	indent := strings.Repeat(" ", utf8.RuneCount(content[start:at])) // the first key of a list item is after a dash
	end := "\n"
	if next := bytes.IndexByte(content[at:], '\n'); next > 0 && content[at+next-1] == '\r' {
		end = "\r\n"
	}
	return change{at, at, caDataField + ": " + encoded + end + indent}, nil
}

// replace replaces the value of a scalar and keeps its style. The value must need no escaping.
func replace(content []byte, lines []int, scalar *yaml.Node, value string) (change, error) {
	if scalar.Kind != yaml.ScalarNode {
		return change{}, fmt.Errorf("line %d: it is a YAML alias; write it out, or recreate the kubeconfig", scalar.Line)
	}
	at, err := position(content, lines, scalar)
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
		if rest := string(content[at:]); scalar.Value == "" || strings.HasPrefix(rest, scalar.Value) {
			return change{at, at + len(scalar.Value), " " + value}, nil
		}
	}
	old := quote + scalar.Value + quote
	if !bytes.HasPrefix(content[at:], []byte(old)) {
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
func position(content []byte, lines []int, node *yaml.Node) (int, error) {
	if node.Line < 1 || node.Line > len(lines) {
		return 0, fmt.Errorf("finding line %d", node.Line)
	}
	at := lines[node.Line-1]
	for range node.Column - 1 {
		if at >= len(content) {
			return 0, fmt.Errorf("finding line %d, column %d", node.Line, node.Column)
		}
		_, size := utf8.DecodeRune(content[at:])
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

// named returns the list item with this name, or nil. It is unique: clientcmd rejects duplicates.
func named(root *yaml.Node, list, name string) *yaml.Node {
	_, items := field(root, list)
	if items == nil {
		return nil
	}
	for _, item := range items.Content {
		if _, value := field(item, "name"); value != nil && value.Value == name {
			return item
		}
	}
	return nil
}
