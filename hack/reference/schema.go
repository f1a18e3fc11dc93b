package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The patterns of strings whose form the Go type does not tell.
const (
	timePattern   = `^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$`
	sha256Pattern = "^[0-9a-f]{64}$"
)

// outputSchema is the JSON Schema of what the commands print, made from the types in package result and their comments.
func outputSchema() (*jsonschema.Schema, error) {
	docs, err := readComments("internal/cli/result", "pkg/certs", "internal/delegation")
	if err != nil {
		return nil, err
	}
	b := &schemaBuilder{docs: docs, defs: map[string]*jsonschema.Schema{}, types: map[reflect.Type]string{}}
	root := &jsonschema.Schema{
		Schema: "https://json-schema.org/draft/2020-12/schema",
		Title:  "What pinniped prints with -o json and -o yaml",
	}
	for _, known := range result.Kinds() {
		if object := reflect.TypeOf(known.Object).Elem(); b.types[object] == "" {
			b.types[object] = string(known.Kind)
		}
	}
	for _, known := range result.Kinds() {
		object := reflect.TypeOf(known.Object).Elem()
		schema, err := b.object(object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", known.Kind, err)
		}
		schema.Description = docs[object.Name()]
		schema.Properties["kind"] = &jsonschema.Schema{Const: jsonschema.Ptr[any](string(known.Kind))}
		schema.Properties["apiVersion"] = &jsonschema.Schema{Const: jsonschema.Ptr[any](result.APIVersion)}
		if known.Kind == result.KindFailure {
			schema.Required = append(schema.Required, "error")
		}
		b.defs[string(known.Kind)] = schema
		root.OneOf = append(root.OneOf, ref(string(known.Kind)))
	}
	root.Defs = b.defs
	return root, nil
}

func ref(name string) *jsonschema.Schema { return &jsonschema.Schema{Ref: "#/$defs/" + name} }

// schemaBuilder makes a definition for each struct.
type schemaBuilder struct {
	docs  map[string]string // comments of types, and of fields as TYPE.FIELD
	defs  map[string]*jsonschema.Schema
	types map[reflect.Type]string
}

// enum is a type that lists its values.
type enum interface{ Enum() []string }

func (b *schemaBuilder) of(t reflect.Type) (*jsonschema.Schema, error) {
	if t.Kind() == reflect.Pointer {
		return b.of(t.Elem())
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return &jsonschema.Schema{Type: "string", Format: "date-time", Pattern: timePattern}, nil
	case reflect.TypeFor[certs.Severity]():
		return oneOf("info", "warning", "error"), nil
	case reflect.TypeFor[certs.Code]():
		var codes []string
		for _, code := range certs.Codes() {
			codes = append(codes, string(code))
		}
		return oneOf(codes...), nil
	}
	if values, ok := reflect.Zero(t).Interface().(enum); ok {
		return oneOf(values.Enum()...), nil
	}
	switch {
	case t.Kind() == reflect.String:
		return &jsonschema.Schema{Type: "string"}, nil
	case t.Kind() == reflect.Bool:
		return &jsonschema.Schema{Type: "boolean"}, nil
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return &jsonschema.Schema{Type: "integer"}, nil
	case t.Kind() == reflect.Slice:
		items, err := b.of(t.Elem())
		return &jsonschema.Schema{Type: "array", Items: items}, err
	case t.Kind() == reflect.Struct && strings.Contains(t.PkgPath(), "/pkg/apis/"): // the CRD describes it
		return &jsonschema.Schema{Types: []string{"null", "object"}}, nil
	case t.Kind() == reflect.Struct:
		return b.reference(t)
	}
	return nil, fmt.Errorf("there is no schema for %s", t)
}

func oneOf(values ...string) *jsonschema.Schema {
	schema := &jsonschema.Schema{Type: "string"}
	for _, value := range values {
		schema.Enum = append(schema.Enum, value)
	}
	return schema
}

func (b *schemaBuilder) reference(t reflect.Type) (*jsonschema.Schema, error) {
	name, known := b.types[t]
	if !known {
		name = t.Name()
		if b.defs[name] != nil || slices.Contains(result.Kind("").Enum(), name) {
			name += "Object"
		}
		b.types[t] = name
		schema, err := b.object(t)
		if err != nil {
			return nil, err
		}
		schema.Description = b.docs[t.Name()]
		b.defs[name] = schema
	}
	return ref(name), nil
}

func (b *schemaBuilder) object(t reflect.Type) (*jsonschema.Schema, error) {
	schema := &jsonschema.Schema{
		Type: "object", Properties: map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	for _, field := range reflect.VisibleFields(t) {
		tag, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous || !field.IsExported() || tag == "" || tag == "-" {
			continue
		}
		property, err := b.of(field.Type)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field.Name, err)
		}
		owner := t
		if len(field.Index) > 1 {
			owner = t.FieldByIndex(field.Index[:len(field.Index)-1]).Type
		}
		property.Description = b.docs[owner.Name()+"."+field.Name]
		if strings.HasSuffix(strings.ToLower(tag), "sha256") {
			property.Pattern = sha256Pattern
		}
		schema.Properties[tag] = property
		schema.PropertyOrder = append(schema.PropertyOrder, tag)
		if !strings.Contains(options, "omit") {
			schema.Required = append(schema.Required, tag)
		}
	}
	return schema, nil
}

// readComments returns the comments of the types in folders, and of their fields as TYPE.FIELD.
func readComments(folders ...string) (map[string]string, error) {
	docs := map[string]string{}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			one, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			ast.Inspect(one, func(node ast.Node) bool {
				declaration, ok := node.(*ast.GenDecl)
				if !ok || declaration.Tok != token.TYPE {
					return true
				}
				for _, spec := range declaration.Specs {
					typed := spec.(*ast.TypeSpec)
					docs[typed.Name.Name] = comment(declaration.Doc, typed.Doc)
					if fields, ok := typed.Type.(*ast.StructType); ok {
						for _, field := range fields.Fields.List {
							for _, name := range field.Names {
								docs[typed.Name.Name+"."+name.Name] = comment(field.Doc, field.Comment)
							}
						}
					}
				}
				return false
			})
		}
	}
	return docs, nil
}

func comment(groups ...*ast.CommentGroup) string {
	for _, group := range groups {
		if text := strings.Join(strings.Fields(group.Text()), " "); text != "" {
			return text
		}
	}
	return ""
}

// outputDocs returns the schema, and a page that tells the same to people.
func outputDocs() (schema, page []byte, err error) {
	made, err := outputSchema()
	if err != nil {
		return nil, nil, err
	}
	if _, err := made.Resolve(nil); err != nil {
		return nil, nil, err
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(made); err != nil {
		return nil, nil, err
	}
	return encoded.Bytes(), outputPage(made), nil
}
