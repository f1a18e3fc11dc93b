// Package plan decides about the certificate in front of the impersonation proxy, and asks nobody: a Request and a Snapshot
// of the cluster go in, a Plan comes out. Evaluate is for what flags ask for, EvaluateTarget for a configuration that is
// wanted as it is. Beside it are the comparison of configurations, the patches that lead from one to the other, the record
// of the last change, and the comparison of the agent's status with what is wanted.
package plan
