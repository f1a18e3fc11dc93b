package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const outputIntroduction = `# Output for programs

With ` + "`-o json`" + ` and ` + "`-o yaml`" + `, every command prints one object on stdout. It begins with ` +
	"`apiVersion: %s`" + `, its ` + "`kind`" + `, and, when the command does not
end with exit code 0, ` + "`error`" + `. A command that fails before it has anything else to tell prints a
[Failure](#failure): so a script can always look at ` + "`.error`" + `. All else is said on stderr.

The JSON Schema is [output.schema.json](output.schema.json); the project's tests compare real outputs with it.
Within a version, fields and values of enums are added, but none is removed or gets another meaning.

- A CA bundle is a list of its certificates: ` + "`sha256`" + ` (in full), ` + "`subject`, `notBefore`, `notAfter`" + `. An empty list means
  the system roots. Where it is absent, it is not known.
- A Secret is ` + "`{namespace, name}`" + `.
- A kubeconfig is a [File](#file): ` + "`path`, `outcome`, `reason`, `entries`" + `.
- ` + "`source`" + ` says where a certificate was found, ` + "`outcome`" + ` what was done or found.
- Values of enums have no spaces. What is copied from an object of Kubernetes (status, reason, mode, verification) is as
  it is there, and codes are those of the [checks](cli/checks.md).

Some commands print objects of Kubernetes, which have versions of their own: ` + "`whoami`" + ` a WhoAmIRequest,
` + "`ip-tls delegate`" + ` a List of what the owner of a Secret applies, ` + "`get kubeconfig`" + ` a Config, ` + "`login`" + ` an ExecCredential. A failure
of ` + "`whoami`" + ` and ` + "`ip-tls delegate`" + ` is a Failure, too.
`

// outputPage describes the schema to people.
func outputPage(schema *jsonschema.Schema) []byte {
	var page strings.Builder
	fmt.Fprintf(&page, outputIntroduction, result.APIVersion)
	page.WriteString("\n## Kinds\n")
	kinds := map[string]bool{}
	for _, known := range result.Kinds() {
		kinds[string(known.Kind)] = true
		fmt.Fprintf(&page, "\n### %s\n\n", known.Kind)
		if known.Kind == result.KindFailure {
			page.WriteString("Printed by every command that fails before it has another result.\n")
		} else {
			fmt.Fprintf(&page, "Printed by `pinniped %s`.\n", strings.Join(known.Commands, "`, `pinniped "))
		}
		writeObject(&page, schema.Defs[string(known.Kind)])
	}
	page.WriteString("\n## Shapes\n")
	for _, name := range slices.Sorted(maps.Keys(schema.Defs)) {
		if !kinds[name] {
			fmt.Fprintf(&page, "\n### %s\n", name)
			writeObject(&page, schema.Defs[name])
		}
	}
	return []byte(page.String())
}

func writeObject(page *strings.Builder, schema *jsonschema.Schema) {
	if schema.Description != "" {
		fmt.Fprintf(page, "\n%s\n", schema.Description)
	}
	page.WriteString("\n| field | type | meaning |\n|---|---|---|\n")
	for _, name := range schema.PropertyOrder {
		if name == "apiVersion" || name == "kind" || name == "error" && !slices.Contains(schema.Required, "error") {
			continue // of every kind
		}
		property := schema.Properties[name]
		optional := ""
		if !slices.Contains(schema.Required, name) {
			optional = "?"
		}
		fmt.Fprintf(page, "| `%s`%s | %s | %s |\n", name, optional, typeText(property), property.Description)
	}
}

func typeText(schema *jsonschema.Schema) string {
	switch {
	case schema.Ref != "":
		name := strings.TrimPrefix(schema.Ref, "#/$defs/")
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	case schema.Items != nil:
		return "list of " + typeText(schema.Items)
	case len(schema.Enum) == len(certs.Codes()):
		return "a code of the [checks](cli/checks.md)"
	case len(schema.Enum) > 0:
		var values []string
		for _, value := range schema.Enum {
			values = append(values, fmt.Sprintf("`%v`", value))
		}
		return strings.Join(values, ", ")
	case schema.Format == "date-time":
		return "time"
	case schema.Pattern == sha256Pattern:
		return "SHA-256"
	case schema.Type == "":
		return "object"
	default:
		return schema.Type
	}
}
