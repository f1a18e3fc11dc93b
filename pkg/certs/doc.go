// Package certs issues certificates, and checks certificates that others issued.
//
// Issuing: NewCA makes a certificate authority, and LoadCA reads one back. The methods IssueServing and IssueClient
// issue certificates.
//
// Checking: Check runs a catalogue of checks on a serving certificate, together with its key, the names that clients
// use and the CA bundle that they verify with. It returns a Report with every finding. Timeline tells what Check will
// find later. Explain describes a code of the catalogue.
//
// The package needs no cluster and reads no clock: times are parameters.
package certs
