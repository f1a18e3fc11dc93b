// Package serving decides which certificate the impersonation proxy serves and which trust bundle it publishes. It is
// pure: it reads no cluster, no file and no clock, and is shared by the agent and the CLI.
//
// What is published at one time is a Revision: the endpoint, the trust bundle, and the names that the certificate in
// service covers. A kubeconfig made meanwhile has it. The agent appends every Revision to a History before it publishes
// it.
//
// Resolve reads what a CredentialIssuer asks for, External checks the certificate that it names, and Evaluate says
// whether that certificate is served, waits, or is refused. Effect says for each kind of client whether it verifies what
// is served now and what would be served next; Judge draws the conclusion.
package serving
