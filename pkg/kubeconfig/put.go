package kubeconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	sigsyaml "sigs.k8s.io/yaml"
)

// put returns content with the entries of merged that are not current, as in config.
func put(content []byte, root *yaml.Node, config *clientcmdapi.Config, merged *Merged) ([]byte, error) {
	t := newEditor(content, root)
	for _, kind := range []string{kindCluster, kindContext, kindUser} {
		if err := t.putList(kind, config, merged.Entries); err != nil {
			return nil, err
		}
	}
	if merged.CurrentContext != merged.CurrentContextBefore {
		if err := t.putCurrentContext(merged.CurrentContext); err != nil {
			return nil, err
		}
	}
	return t.apply(), nil
}

func (t *editor) putList(kind string, config *clientcmdapi.Config, entries []Entry) error {
	key, list := field(t.root, kind+"s")
	var added []string
	for _, entry := range entries {
		if entry.Kind != kind || entry.Outcome == Current {
			continue
		}
		item, err := render(kind, entry.Name, config)
		if err != nil {
			return err
		}
		if entry.Outcome == Added {
			added = append(added, item)
			continue
		}
		if err := t.replaceItem(list, entry.Name, item); err != nil {
			return fmt.Errorf("replacing %s %q: %w", kind, entry.Name, err)
		}
	}
	if len(added) == 0 {
		return nil
	}
	if err := t.addItems(key, list, kind, added); err != nil {
		return fmt.Errorf("adding to the %ss: %w", kind, err)
	}
	return nil
}

// render returns a list item in block style without indentation, as clientcmd writes it.
func render(kind, name string, from *clientcmdapi.Config) (string, error) {
	one := clientcmdapi.NewConfig()
	switch kind {
	case kindCluster:
		one.Clusters[name] = from.Clusters[name]
	case kindContext:
		one.Contexts[name] = from.Contexts[name]
	case kindUser:
		user := from.AuthInfos[name].DeepCopy()
		if user.Exec != nil && user.Exec.APIVersion == execAPIVersion &&
			user.Exec.InteractiveMode == clientcmdapi.IfAvailableExecInteractiveMode {
			user.Exec.InteractiveMode = "" // the default, which Build omits
		}
		one.AuthInfos[name] = user
	}
	content, err := clientcmd.Write(*one)
	if err != nil {
		return "", fmt.Errorf("encoding %s %q: %w", kind, name, err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil || len(document.Content) != 1 {
		return "", fmt.Errorf("encoding %s %q: %w", kind, name, err)
	}
	t := newEditor(content, document.Content[0])
	_, list := field(t.root, kind+"s")
	if list == nil || len(list.Content) != 1 {
		return "", fmt.Errorf("encoding %s %q: there is no such item", kind, name)
	}
	start, end, err := t.blockItem(list, 0)
	if err != nil {
		return "", err
	}
	return string(content[start:end]), nil
}

// replaceItem replaces the list item with this name.
func (t *editor) replaceItem(list *yaml.Node, name, item string) error {
	at := named(list, name)
	if at < 0 {
		return errAlias
	}
	if flow(list) || flow(list.Content[at]) {
		from, to, err := t.flowSpan(list.Content[at])
		if err != nil {
			return err
		}
		one, err := flowItems(item)
		if err != nil {
			return err
		}
		t.changes = append(t.changes, change{from, to, one})
		return nil
	}
	from, to, err := t.blockItem(list, at)
	if err != nil {
		return err
	}
	text := t.indented(withComments(item, t.content[from:to]), list.Column-1)
	if to == len(t.content) && to > 0 && t.content[to-1] != '\n' {
		text = strings.TrimSuffix(text, t.lineEnd())
	}
	t.changes = append(t.changes, change{from, to, text})
	return nil
}

var errAlias = errors.New("finding it in the file: it is a YAML alias; write it out")

// addItems appends items to a list, or adds the list.
func (t *editor) addItems(key, list *yaml.Node, kind string, items []string) error {
	switch {
	case list == nil && flow(t.root):
		text, err := flowItems(items...)
		if err != nil {
			return err
		}
		return t.addFlowField(kind+"s", "["+text+"]")
	case list == nil:
		t.tail += t.indented(kind+"s:\n", t.root.Column-1) + t.indented(strings.Join(items, ""), t.root.Column-1)
		return nil
	case list.Kind == yaml.AliasNode || list.Anchor != "":
		return errAlias
	case flow(list):
		return t.addFlowItems(list, items)
	case list.Kind == yaml.ScalarNode: // nothing, ~ or null
		return t.fillEmptyList(key, list, items)
	case list.Kind != yaml.SequenceNode || len(list.Content) == 0:
		return fmt.Errorf("line %d: not a list", list.Line)
	}
	_, to, err := t.blockItem(list, len(list.Content)-1)
	if err != nil {
		return err
	}
	text := t.indented(strings.Join(items, ""), list.Column-1)
	if to == len(t.content) && to > 0 && t.content[to-1] != '\n' {
		text = t.lineEnd() + strings.TrimSuffix(text, t.lineEnd())
	}
	t.changes = append(t.changes, change{to, to, text})
	return nil
}

// fillEmptyList replaces a null list by items.
func (t *editor) fillEmptyList(key, list *yaml.Node, items []string) error {
	if list.Tag != "!!null" || list.Anchor != "" {
		return fmt.Errorf("line %d: not a list", list.Line)
	}
	if flow(t.root) || list.Value != "" {
		at, err := t.position(list)
		text := t.lineEnd() + t.unended(items)
		if err == nil && flow(t.root) {
			text, err = flowItems(items...)
			text = "[" + text + "]"
		}
		if err != nil {
			return err
		}
		t.changes = append(t.changes, change{at, at + len(list.Value), text})
		return nil
	}
	// After the colon there is nothing but perhaps a comment, so the items go on the next lines.
	after := t.lineStart(key.Line)
	text := t.indented(strings.Join(items, ""), t.root.Column-1)
	if after > 0 && t.content[after-1] != '\n' {
		text = t.lineEnd() + text
	}
	t.changes = append(t.changes, change{after, after, text})
	return nil
}

// putCurrentContext changes the current context.
func (t *editor) putCurrentContext(name string) error {
	const current = "current-context"
	_, value := field(t.root, current)
	quoted, err := json.Marshal(name)
	if err != nil {
		return err
	}
	plain := string(quoted)
	if plainScalar(name) && !flow(t.root) {
		plain = name
	}
	switch {
	case value == nil && flow(t.root):
		return t.addFlowField(current, string(quoted))
	case value == nil:
		t.tail += t.indented(current+": "+plain+"\n", t.root.Column-1)
		return nil
	}
	made, err := t.replace(value, "")
	if err != nil {
		return fmt.Errorf("changing the current context: %w", err)
	}
	if value.Tag == "!!null" {
		plain = " " + plain
	}
	t.changes = append(t.changes, change{made.from, made.to, plain})
	return nil
}

// plainScalar reports whether text means itself in YAML without quotes.
func plainScalar(text string) bool {
	var back map[string]any
	return sigsyaml.Unmarshal([]byte("a: "+text+"\n"), &back) == nil && len(back) == 1 && back["a"] == any(text)
}

// blockItem returns where a list item in block style starts, at its dash's line, and where its last line ends. Blank
// lines and comments after it belong to what follows.
func (t *editor) blockItem(list *yaml.Node, index int) (from, to int, err error) {
	item := list.Content[index]
	if item.Kind == yaml.AliasNode {
		return 0, 0, errAlias
	}
	first := list.Line - 1
	if index > 0 {
		if first = t.dashLine(list, item.Line); first < 0 {
			return 0, 0, fmt.Errorf("line %d: finding its dash", item.Line)
		}
	}
	end := t.end()
	if index+1 < len(list.Content) {
		if next := t.dashLine(list, list.Content[index+1].Line); next >= 0 {
			end = t.lineStart(next)
		}
	} else {
		for i := 0; i+1 < len(t.root.Content); i += 2 {
			key := t.root.Content[i]
			if at := t.lineStart(key.Line - 1); key.Line-1 > first && at < end && at >= t.lineStart(item.Line-1) {
				end = at
			}
		}
	}
	from = t.lineStart(first)
	if line := bytes.TrimLeft(t.content[from:min(from+list.Column, len(t.content))], " "); len(line) == 0 ||
		line[0] != '-' {
		return 0, 0, fmt.Errorf("line %d: it does not begin with a dash", first+1)
	}
	return from, t.trimmed(from, end), nil
}

// dashLine returns the line, from 0, with the dash of a list item: that of its content or one above, or -1.
func (t *editor) dashLine(list *yaml.Node, contentLine int) int {
	for line := contentLine - 1; line >= list.Line-1 && line >= 0; line-- {
		at := t.lineStart(line)
		dash := at + list.Column - 1
		if dash < len(t.content) && t.content[dash] == '-' && len(bytes.TrimSpace(t.content[at:dash])) == 0 {
			return line
		}
	}
	return -1
}

// trimmed returns the end of the last line between from and end that is neither blank nor a comment.
func (t *editor) trimmed(from, end int) int {
	last := from
	for at := from; at < end; {
		next := end
		if n := bytes.IndexByte(t.content[at:end], '\n'); n >= 0 {
			next = at + n + 1
		}
		if line := bytes.TrimSpace(t.content[at:next]); len(line) > 0 && line[0] != '#' {
			last = next
		}
		at = next
	}
	return last
}

// end returns where the document ends: at the end of the file, or at a line that ends it or starts another document.
func (t *editor) end() int {
	for _, at := range t.lines {
		rest := t.content[at:]
		marker := bytes.HasPrefix(rest, []byte("---")) || bytes.HasPrefix(rest, []byte("..."))
		if marker && at > 0 && at > t.lineStart(t.root.Line-1) {
			return at
		}
	}
	return len(t.content)
}

// lineStart returns the offset of a line, counted from 0; the end of the file for a line after the last.
func (t *editor) lineStart(line int) int {
	if line < 0 || line >= len(t.lines) {
		return len(t.content)
	}
	return t.lines[line]
}

// lineEnd returns the line ending of this file.
func (t *editor) lineEnd() string {
	if at := bytes.IndexByte(t.content, '\n'); at > 0 && t.content[at-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// indented returns lines with indentation and the file's line endings.
func (t *editor) indented(lines string, spaces int) string {
	var out strings.Builder
	for line := range strings.Lines(lines) {
		out.WriteString(strings.Repeat(" ", spaces) + strings.TrimSuffix(line, "\n") + t.lineEnd())
	}
	return out.String()
}

// unended returns items without the last line ending, which the file already has.
func (t *editor) unended(items []string) string {
	return strings.TrimSuffix(t.indented(strings.Join(items, ""), t.root.Column-1), t.lineEnd())
}

// endLine ends the last line of content.
func endLine(content []byte) []byte {
	if len(content) > 0 && content[len(content)-1] != '\n' {
		return append(content, '\n')
	}
	return content
}

// addFlowField adds a field at the start of a document in flow style, such as JSON.
func (t *editor) addFlowField(name, value string) error {
	at, err := t.position(t.root)
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
	from, to, err := t.flowSpan(list)
	if err != nil {
		return err
	}
	if len(list.Content) == 0 && !flow(t.root) {
		// kubectl writes an empty list in this form; like kubectl, write a non-empty one in block style.
		t.changes = append(t.changes, change{from, to, t.lineEnd() + t.unended(items)})
		return nil
	}
	text, err := flowItems(items...)
	if err != nil {
		return err
	}
	if len(list.Content) == 0 {
		t.changes = append(t.changes, change{from + 1, from + 1, text})
		return nil
	}
	_, last, err := t.flowSpan(list.Content[len(list.Content)-1])
	if err != nil {
		return err
	}
	t.changes = append(t.changes, change{last, last, ", " + text})
	return nil
}

func flow(n *yaml.Node) bool { return n != nil && n.Style&yaml.FlowStyle != 0 }

// flowItems converts items from block style to flow style.
func flowItems(items ...string) (string, error) {
	all := make([]string, 0, len(items))
	for _, item := range items {
		list, err := sigsyaml.YAMLToJSON([]byte(item))
		if err != nil {
			return "", err
		}
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(string(list), "["), "]"))
	}
	return strings.Join(all, ", "), nil
}

// flowSpan returns where a list or mapping in flow style starts and ends.
func (t *editor) flowSpan(node *yaml.Node) (from, to int, err error) {
	if from, err = t.position(node); err != nil {
		return 0, 0, err
	}
	to, err = flowEnd(t.content, from)
	return from, to, err
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
