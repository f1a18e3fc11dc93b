// Package metrics serves the metrics of this process, and optionally its profiles, over plain HTTP on a port of its
// own.
//
// A scraper needs no identity of the cluster, so the port is on the loopback address unless the configuration says
// otherwise, and nothing that is served here names a user, an object or a secret. Profiles show more of the process
// than numbers do: they are off by default, and when they are on, only clients on the same machine (or in the same
// pod) get them, unless that is configured too.
package metrics
