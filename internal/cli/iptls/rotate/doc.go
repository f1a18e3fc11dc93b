// Package rotate implements `pinniped ip-tls rotate`. rotate.go does the steps that are due; each is a change.Change
// (step.go), preceded by its preconditions (preconditions.go) and a preflight of the steps to come (preflight.go).
package rotate
