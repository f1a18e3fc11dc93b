// Package certs issues certificates and judges the ones that others issued.
//
// Issuing: NewCA makes a certificate authority, LoadCA reads one back, and its IssueServing and IssueClient methods
// issue certificates. Judging: Check runs the catalogue of checks on a serving certificate, in the way it would be put in front of
// a cluster, and returns a Report with every finding.
//
// The package needs no cluster and reads no clock: times come in as parameters.
package certs
