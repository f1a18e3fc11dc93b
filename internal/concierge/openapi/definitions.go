// Package openapi has the OpenAPI definitions of the aggregated APIs, for discovery and `kubectl explain`.
package openapi

import (
	"strings"

	aggregator "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// typedLocalObjectReference is the name of the only core API type in the generated definitions.
const typedLocalObjectReference = "k8s.io/api/core/v1.TypedLocalObjectReference"

// Definitions returns the definitions of all types that the aggregated APIs use. The aggregator provides those of
// apimachinery. The one type of the core API is defined by hand, because the generated definitions of the core API,
// about a thousand, would take up memory.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	definitions := aggregator.GetOpenAPIDefinitions(ref)
	ours := GetOpenAPIDefinitions(func(definition string) spec.Ref { return ref(modelName(definition)) })
	for name, definition := range ours {
		for i, dependency := range definition.Dependencies {
			definition.Dependencies[i] = modelName(dependency)
		}
		definitions[name] = definition
	}
	definitions[typedLocalObjectReference] = common.OpenAPIDefinition{Schema: spec.Schema{
		SchemaProps: spec.SchemaProps{
			Description: "TypedLocalObjectReference names one object by its API group, kind and name.",
			Type:        []string{"object"},
			Required:    []string{"kind", "name"},
			Properties: map[string]spec.Schema{
				"apiGroup": text(
					"apiGroup is the API group of the object. For an authenticator it begins with \"authentication.concierge.\".",
				),
				"kind": text("kind of the object."),
				"name": text("name of the object."),
			},
		},
		VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-map-type": "atomic"}},
	}}
	return definitions
}

// modelName returns the aggregator's name of an apimachinery definition. The generator refers to types of packages that
// it does not generate by their Go path.
func modelName(definition string) string {
	if strings.HasPrefix(definition, "k8s.io/apimachinery/") {
		return util.ToRESTFriendlyName(definition)
	}
	return definition
}

// DocumentedName returns the name of a definition in the OpenAPI documents. The generator names most types by their Go
// import path, which is converted here. A type with its own name keeps it.
func DocumentedName(definition string) string {
	if strings.Contains(definition, "/") {
		return util.ToRESTFriendlyName(definition)
	}
	return definition
}

func text(description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Type: []string{"string"}}}
}
