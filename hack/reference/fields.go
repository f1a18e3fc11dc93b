package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// definition is what a table takes from a CRD.
type definition struct {
	Spec struct {
		Versions []struct {
			Schema struct {
				OpenAPIV3Schema schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

type schema struct {
	Type        string            `json:"type"`
	Description string            `json:"description"`
	Required    []string          `json:"required"`
	Properties  map[string]schema `json:"properties"`
	Items       *schema           `json:"items"`
}

// writeFields replaces the tables of fields in a page, which are those of the CRDs. The text around them is written by
// hand: each table stands below a comment that names its kind.
func writeFields(page, crds string, kinds ...string) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		file := filepath.Join(crds, "authentication.concierge.pinniped.dev_"+strings.ToLower(kind)+"s.yaml")
		manifest, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var crd definition
		if err := yaml.Unmarshal(manifest, &crd); err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		var table strings.Builder
		table.WriteString("| field below `spec` | type | |\n|---|---|---|\n")
		fields(&table, "", crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"])
		begin, end := []byte("<!-- fields of "+kind+" -->\n"), []byte("<!-- end of fields -->")
		before, rest, found := bytes.Cut(content, begin)
		_, after, closed := bytes.Cut(rest, end)
		if !found || !closed {
			return fmt.Errorf("%s has no place for the fields of %s", page, kind)
		}
		content = slices.Concat(before, begin, []byte(table.String()), end, after)
	}
	return os.WriteFile(page, content, 0o644)
}

// fields writes a line for each field of an object: first those that must be there.
func fields(table *strings.Builder, path string, of schema) {
	names := slices.SortedStableFunc(maps.Keys(of.Properties), func(a, b string) int {
		if x, y := slices.Contains(of.Required, a), slices.Contains(of.Required, b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		field, at, kind := of.Properties[name], path+name, of.Properties[name].Type
		below := field
		if field.Items != nil {
			below, kind = *field.Items, "list"
		}
		description := strings.ReplaceAll(strings.Join(strings.Fields(field.Description), " "), "|", `\|`)
		if slices.Contains(of.Required, name) {
			description = "**Required.** " + description
		}
		fmt.Fprintf(table, "| `%s` | %s | %s |\n", at, kind, description)
		if field.Items != nil {
			at += "[]"
		}
		fields(table, at+".", below)
	}
}
