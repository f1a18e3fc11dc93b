// Package resulttest compares what commands print for programs with the schema in docs/reference.
package resulttest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"sigs.k8s.io/yaml"
)

// Valid fails the test unless every document in the output, JSON or YAML, is one that the schema describes.
func Valid(t *testing.T, output []byte) {
	t.Helper()
	if err := Validate(output); err != nil {
		t.Errorf("not as docs/reference/output.schema.json has it: %v\n%s", err, output)
	}
}

// Validate is Valid without a test.
func Validate(output []byte) error {
	schema, err := resolved()
	if err != nil {
		return err
	}
	encoded, err := yaml.YAMLToJSONStrict(output) // JSON is YAML
	if err != nil {
		return err
	}
	var document any
	if err := json.Unmarshal(encoded, &document); err != nil {
		return err
	}
	return schema.Validate(document)
}

var resolved = sync.OnceValues(func() (*jsonschema.Resolved, error) {
	_, here, _, _ := runtime.Caller(0)
	content, err := os.ReadFile(filepath.Join(filepath.Dir(here), "../../../../docs/reference/output.schema.json"))
	if err != nil {
		return nil, err
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(content, &schema); err != nil {
		return nil, fmt.Errorf("reading the schema: %w", err)
	}
	return schema.Resolve(nil)
})
