package kubeconfig

import (
	"encoding/base64"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// damaged says which entry of a kubeconfig is invalid, and in which line. client-go's error contains Go types and
// values, which may be secret.
func damaged(root *yaml.Node) error {
	for _, kind := range []string{kindCluster, kindContext, kindUser} {
		_, list := field(root, kind+"s")
		if list == nil || list.Tag == "!!null" {
			continue
		}
		if list.Kind != yaml.SequenceNode {
			return fmt.Errorf("%w: line %d: %ss: not a list", ErrDamaged, list.Line, kind)
		}
		lines := map[string]int{}
		for _, item := range list.Content {
			if item.Kind == yaml.AliasNode {
				item = item.Alias
			}
			if item.Kind != yaml.MappingNode {
				return fmt.Errorf("%w: line %d: this item of %ss has no fields", ErrDamaged, item.Line, kind)
			}
			_, name := field(item, "name")
			switch {
			case name == nil:
				continue
			case name.Kind != yaml.ScalarNode:
				return fmt.Errorf("%w: line %d: the %s name is not a string", ErrDamaged, name.Line, kind)
			case name.Tag != "!!str":
				return fmt.Errorf("%w: line %d: YAML does not read the name of this %s as text: put it in quotes, \"%s\"",
					ErrDamaged, name.Line, kind, name.Value)
			case lines[name.Value] > 0:
				return fmt.Errorf("%w: line %d: %s %q already exists on line %d", ErrDamaged, name.Line, kind, name.Value,
					lines[name.Value])
			}
			lines[name.Value] = name.Line
			if err := damagedData(item, kind, name.Value); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%w: its fields are not those of a kubeconfig", ErrDamaged)
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
			return fmt.Errorf(
				"%w: line %d: %s of %s %q is not valid base64",
				ErrDamaged,
				value.Line,
				key.Value,
				kind,
				name,
			)
		}
	}
	return nil
}
