// Package result holds what the commands print for programs, with -o json and -o yaml: one versioned shape for all.
//
// Every object begins with Head: apiVersion, kind and, when the command has failed, error. What several commands show
// has one type here (shapes.go): a CA bundle, a Secret, a kubeconfig, an address. Values of enums have no spaces.
//
// To make the output of a new command conform:
//
//  1. Declare its type here, with Head as the first, embedded field, and a comment for each field that needs one.
//  2. Add it to Kinds.
//  3. Add --output with factory.AddOutput, and end Run with
//     "return result.Print(o.Out, o.Output, &object, err, text)".
//  4. Run hack/generate.sh, which writes docs/reference/output.md and docs/reference/output.schema.json, and check an
//     output in a test with resulttest.Valid.
//
// A command that fails before it has an object needs nothing more: the root command prints a Failure in its place.
package result
