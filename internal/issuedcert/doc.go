// Package issuedcert keeps the certificates that the agent issues itself: a CA, a certificate, or both, in a Secret.
//
// A Policy describes one such Secret: its keys, names and lifetimes. Inspect reads the Secret. State.Verdict is the
// first of an ordered list of checks that finds a reason to change the Secret. State.Repair returns the content that
// the Secret is to have instead, and Write stores it, unless the Secret was changed since it was read. Everything but
// Write is a pure function.
//
// A CA that clients have in their configuration must not be lost. So Repair prefers a CA that was seen before over a
// new one. Where a CA is renewed, a Succession says how those who trust it learn of the next one.
package issuedcert
