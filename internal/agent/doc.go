// Package agent is the composition root of pinniped-agent: it reads the configuration, wires the impersonation proxy,
// the aggregated Concierge APIs and the controllers together, and runs them until its context ends.
package agent
