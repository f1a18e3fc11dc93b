// Package plan decides what to do about the certificate in front of the impersonation proxy. It is pure: a Request
// and a Snapshot of the cluster go in, and a Plan comes out. Evaluate takes what flags ask for; EvaluateTarget takes
// a whole configuration. The package also compares configurations, makes the patch from one to the next, keeps the
// record for an undo, and compares the agent's status with a Plan.
package plan
