package kubeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

// addFlowField adds a field at the start of a document in flow style, such as JSON.
func (t *editor) addFlowField(name, value string) error {
	at, err := position(t.content, t.lines, t.root)
	if err != nil {
		return err
	}
	end := ", "
	if len(t.root.Content) == 0 {
		end = ""
	}
	t.changes = append(t.changes, change{at + 1, at + 1, fmt.Sprintf("%q: %s%s", name, value, end)})
	return nil
}

// addFlowItems adds items to a list in flow style.
func (t *editor) addFlowItems(list *yaml.Node, items []string) error {
	from, err := position(t.content, t.lines, list)
	if err != nil {
		return err
	}
	to, err := flowEnd(t.content, from)
	if err != nil {
		return err
	}
	if len(list.Content) == 0 && !flow(t.root) {
		// kubectl writes an empty list in this form; like kubectl, write a non-empty one in block style.
		t.changes = append(t.changes, change{from, to, t.lineEnd() + t.unended(items)})
		return nil
	}
	text, err := flowItems(items)
	if err != nil {
		return err
	}
	if len(list.Content) == 0 {
		t.changes = append(t.changes, change{from + 1, from + 1, text})
		return nil
	}
	last, err := position(t.content, t.lines, list.Content[len(list.Content)-1])
	if err != nil {
		return err
	}
	if last, err = flowEnd(t.content, last); err != nil {
		return err
	}
	t.changes = append(t.changes, change{last, last, ", " + text})
	return nil
}

func flow(n *yaml.Node) bool { return n != nil && n.Style&yaml.FlowStyle != 0 }

// flowItems converts items from block style to flow style.
func flowItems(items []string) (string, error) {
	all := make([]string, 0, len(items))
	for _, item := range items {
		one, err := flowItem(item)
		if err != nil {
			return "", err
		}
		all = append(all, one)
	}
	return strings.Join(all, ", "), nil
}

func flowItem(item string) (string, error) {
	list, err := sigsyaml.YAMLToJSON([]byte(item))
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(list), "["), "]"), nil
}

// flowEnd returns the end of a list or mapping in flow style that starts at from.
func flowEnd(content []byte, from int) (int, error) {
	if c := content[from]; c != '[' && c != '{' {
		return 0, errFlow
	}
	depth, quote := 0, byte(0)
	for at := from; at < len(content); at++ {
		c := content[at]
		switch {
		case quote == '"' && c == '\\':
			at++
		case quote != 0:
			if c == quote {
				quote = 0 // the second of two single quotes starts a new one at once
			}
		case (c == '"' || c == '\'') && at > from && beginsValue(content[at-1]):
			quote = c
		case c == '#' && at > from && (content[at-1] == ' ' || content[at-1] == '\t' || content[at-1] == '\n'):
			next := bytes.IndexByte(content[at:], '\n')
			if next < 0 {
				return 0, errFlow
			}
			at += next
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		}
		if depth == 0 {
			return at + 1, nil
		}
	}
	return 0, errFlow
}

var errFlow = errors.New("finding the end of a list or mapping in braces: it has a YAML anchor, or is damaged")

// beginsValue reports whether a quote after c starts a value: within a word, it is an ordinary character.
func beginsValue(c byte) bool { return bytes.IndexByte([]byte(" \t\r\n,:[{'"), c) >= 0 }
