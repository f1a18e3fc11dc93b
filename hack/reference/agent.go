package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/agent"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

const issuerCRD = "deploy/crds/config.concierge.pinniped.dev_credentialissuers.yaml"

// agentSchema is the JSON Schema of the agent's configuration, made from its type, from its flags, which describe the
// keys, and from the CRD.
func agentSchema() ([]byte, error) {
	spec, err := issuerSpecSchema()
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", issuerCRD, err)
	}
	schema, err := jsonschema.For[agent.Config](&jsonschema.ForOptions{
		TypeSchemas: map[reflect.Type]*jsonschema.Schema{reflect.TypeFor[configv1alpha1.CredentialIssuerSpec](): spec},
	})
	if err != nil {
		return nil, fmt.Errorf("describing the agent's configuration: %w", err)
	}
	for name, property := range schema.Properties {
		if name != "credentialIssuerSpec" {
			loosen(property, name)
		}
	}
	schema.Required = nil
	schema.Schema = "https://json-schema.org/draft/2020-12/schema"
	schema.Title = "The agent's configuration"
	content, err := json.MarshalIndent(schema, "", "  ")
	return append(content, '\n'), err
}

// loosen makes a key and those below it optional.
func loosen(schema *jsonschema.Schema, key string) {
	schema.Required = nil
	switch key {
	case "discovery.url", "labels":
		schema.Type, schema.Types = "", []string{schema.Type, "null"}
	}
	for name, property := range schema.Properties {
		loosen(property, key+"."+name)
	}
}

// issuerSpecSchema is what the CRD says of a CredentialIssuer's spec. The API server drops fields that it does not know;
// here they are errors.
func issuerSpecSchema() (*jsonschema.Schema, error) {
	content, err := os.ReadFile(issuerCRD)
	if err != nil {
		return nil, err
	}
	type node struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema node `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &crd); err != nil {
		return nil, err
	}
	if len(crd.Spec.Versions) != 1 {
		return nil, fmt.Errorf("it has %d versions", len(crd.Spec.Versions))
	}
	spec := &jsonschema.Schema{}
	if err := json.Unmarshal(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"], spec); err != nil {
		return nil, err
	}
	closed(spec)
	spec.Types, spec.Type = []string{"object", "null"}, ""
	return spec, nil
}

func closed(schema *jsonschema.Schema) {
	schema.Extra = nil // of Kubernetes alone
	if schema.Properties != nil {
		schema.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	}
	for _, property := range schema.Properties {
		closed(property)
	}
	if schema.Items != nil {
		closed(schema.Items)
	}
}
