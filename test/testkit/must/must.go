// Package must has helpers for the steps of a test that are not what it tests. It imports nothing of this module, so that
// every package's tests can use it.
package must

import "testing"

// Do stops the test if a step failed.
func Do(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Get returns the result of a step, and stops the test if it failed: ca := must.Get(certs.NewCA("ca", now, day))(t).
func Get[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		Do(tb, err)
		return value
	}
}
