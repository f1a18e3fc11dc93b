// Package replicas is the registry in which the replicas of the agent publish what they serve.
//
// Each replica owns one Lease; see docs/adr/0005. An annotation of the Lease carries the replica's Report. A
// replica writes its Lease every ten seconds, as a sign of life, and when its report changes, at most once a
// second. A replica that has not renewed its Lease for forty seconds counts as gone.
package replicas
