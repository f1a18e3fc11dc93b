// Package replicas lets every replica of the agent say what it serves, and the leading one know it of all.
//
// Each replica owns one Lease, which it renews as a sign of life and which carries its Report in an annotation: see docs/adr/0005. It writes
// when its report changes, at most once a second, and every ten seconds besides. Whoever does not renew for forty seconds counts as gone.
package replicas
