package kubeconfig

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// parse parses a kubeconfig. It returns ErrNotKubeconfig for another file, and ErrDamaged for an invalid kubeconfig.
func parse(content []byte) (*yaml.Node, *clientcmdapi.Config, error) {
	if len(content) > maxSize {
		return nil, nil, fmt.Errorf("%w: it has %d bytes", ErrNotKubeconfig, len(content))
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", unusable(content), err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, nil, unusable(content)
	}
	root := document.Content[0]
	_, kind := field(root, "kind")
	_, clusters := field(root, "clusters")
	if kind != nil && kind.Value != "Config" || kind == nil && clusters == nil {
		return nil, nil, ErrNotKubeconfig
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, nil, damaged(root)
	}
	return root, config, nil
}

// parts matches keys of a kubeconfig at the start of a line, or in JSON. foreign matches what shows that a file with
// them is a document about kubeconfigs, a script that writes one, or a template.
var (
	parts   = regexp.MustCompile(`(?m)(?:^|[{,])\s*"?(clusters|contexts|users|current-context)"?\s*:`)
	foreign = regexp.MustCompile("(?m)\\A#!|^\\s*```|\\{\\{")
)

// unusable returns ErrDamaged if a file that is not valid YAML may have been a kubeconfig: it has two of the parts.
// Otherwise, it returns ErrNotKubeconfig.
func unusable(content []byte) error {
	seen := map[string]bool{}
	for _, match := range parts.FindAllSubmatch(content, -1) {
		seen[string(match[1])] = true
	}
	if len(seen) < 2 || foreign.Match(content) {
		return ErrNotKubeconfig
	}
	return ErrDamaged
}

// damaged says which entry of a kubeconfig is invalid, and in which line. client-go's error contains Go types and
// values, which may be secret.
func damaged(root *yaml.Node) error {
	for _, kind := range []string{kindCluster, kindContext, kindUser} {
		_, list := field(root, kind+"s")
		if list == nil || list.Tag == "!!null" {
			continue
		}
		if list.Kind != yaml.SequenceNode {
			return damagedAt(list, "%ss: not a list", kind)
		}
		lines := map[string]int{}
		for _, item := range list.Content {
			if item.Kind == yaml.AliasNode {
				item = item.Alias
			}
			if item.Kind != yaml.MappingNode {
				return damagedAt(item, "this item of %ss has no fields", kind)
			}
			_, name := field(item, "name")
			switch {
			case name == nil:
				continue
			case name.Kind != yaml.ScalarNode:
				return damagedAt(name, "the %s name is not a string", kind)
			case name.Tag != "!!str":
				return damagedAt(name, "YAML does not read the name of this %s as text: put it in quotes, \"%s\"", kind, name.Value)
			case lines[name.Value] > 0:
				return damagedAt(name, "%s %q already exists on line %d", kind, name.Value, lines[name.Value])
			}
			lines[name.Value] = name.Line
			if err := damagedData(item, kind, name.Value); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%w: its fields are not those of a kubeconfig", ErrDamaged)
}

func damagedAt(node *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%w: line %d: %s", ErrDamaged, node.Line, fmt.Sprintf(format, args...))
}

// damagedData reports data that is not base64.
func damagedData(item *yaml.Node, kind, name string) error {
	_, body := field(item, kind)
	if body == nil || body.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(body.Content); i += 2 {
		key, value := body.Content[i], body.Content[i+1]
		if !strings.HasSuffix(key.Value, "-data") || value.Kind != yaml.ScalarNode {
			continue
		}
		if _, err := base64.StdEncoding.DecodeString(value.Value); err != nil {
			return damagedAt(value, "%s of %s %q is not valid base64", key.Value, kind, name)
		}
	}
	return nil
}

// encodings are the encodings by byte order mark. PowerShell writes them.
var encodings = map[string]encoding.Encoding{
	"\xff\xfe":     unicode.UTF16(unicode.LittleEndian, unicode.UseBOM),
	"\xfe\xff":     unicode.UTF16(unicode.BigEndian, unicode.UseBOM),
	"\xef\xbb\xbf": unicode.UTF8BOM,
}

// inUTF8 calls change with content in UTF-8 without byte order mark, and returns the result in the original encoding.
func inUTF8(content []byte, change func(text []byte) (changed []byte, err error)) ([]byte, error) {
	for mark, as := range encodings {
		if !bytes.HasPrefix(content, []byte(mark)) {
			continue
		}
		text, err := as.NewDecoder().Bytes(content)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if back, err := as.NewEncoder().Bytes(text); err != nil || !bytes.Equal(back, content) {
			return nil, fmt.Errorf("%w: it has characters that are not valid in its encoding", ErrDamaged)
		}
		changed, err := change(text)
		if err != nil {
			return nil, err
		}
		return as.NewEncoder().Bytes(changed)
	}
	return change(content)
}
