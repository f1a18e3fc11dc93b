// Package resulttest checks machine-readable output of commands against the types of package result.
package resulttest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
)

// Valid fails the test unless output, as JSON or YAML, is one object of a kind in result.Kinds.
func Valid(t *testing.T, output []byte) {
	t.Helper()
	if err := Validate(output); err != nil {
		t.Errorf("not as package result has it: %v\n%s", err, output)
	}
}

// Validate returns an error unless output is one object with the version, a known kind, only fields of that kind, and
// valid enum values.
func Validate(output []byte) error {
	var head result.Head
	if err := yaml.Unmarshal(output, &head); err != nil {
		return err
	}
	if head.APIVersion != result.APIVersion {
		return fmt.Errorf("apiVersion is %q", head.APIVersion)
	}
	object, known := result.Kinds()[head.Kind]
	if !known {
		return fmt.Errorf("kind is %q", head.Kind)
	}
	if head.Kind == result.KindFailure && head.Error == nil {
		return fmt.Errorf("a failure without an error")
	}
	if err := yaml.UnmarshalStrict(output, object); err != nil {
		return err
	}
	return enums(reflect.ValueOf(object), string(head.Kind))
}

// enums returns an error for an enum value that its type does not list.
func enums(value reflect.Value, path string) error {
	if listed, ok := value.Interface().(interface{ Enum() []string }); ok && value.Kind() == reflect.String {
		if text := value.String(); text != "" && !slices.Contains(listed.Enum(), text) {
			return fmt.Errorf("%s is %q, want one of %q", path, text, listed.Enum())
		}
		return nil
	}
	switch value.Kind() { //nolint:exhaustive // other kinds cannot contain our types
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			return enums(value.Elem(), path)
		}
	case reflect.Slice:
		for i := range value.Len() {
			if err := enums(value.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if field := value.Type().Field(i); field.IsExported() {
				if err := enums(value.Field(i), path+"."+field.Name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
