// Package ui is what a person at the terminal sees: progress lines, tables, colour, hints and exit codes.
//
// It is the only package that knows about terminals. Commands return errors; WithHint and WithExitCode attach what the
// root command prints below the error and what the process ends with.
package ui
