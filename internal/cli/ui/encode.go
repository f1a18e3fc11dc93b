package ui

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// PrintAs writes result in format "json" or "yaml", with the field names of its json tags.
func PrintAs(w io.Writer, format string, result any) error {
	var encoded []byte
	var err error
	if format == "json" {
		encoded, err = json.MarshalIndent(result, "", "  ")
		encoded = append(encoded, '\n')
	} else {
		encoded, err = yaml.Marshal(result)
	}
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	if _, err := w.Write(encoded); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}
