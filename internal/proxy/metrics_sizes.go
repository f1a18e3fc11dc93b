package proxy

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
)

// sizes are the metrics that are read from the running proxy when they are scraped. The proxy keeps them as plain
// atomics, which are zero when it starts.
type sizes struct {
	inFlight, clients, connections, dials, problems *prometheus.Desc
	cacheLookups, cacheEntries, reviews             *prometheus.Desc
	admission                                       admissionMetrics
}

func newSizes() sizes {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pinniped_proxy_"+name, help, labels, nil)
	}
	return sizes{
		admission: newAdmissionMetrics(),
		inFlight: desc(
			"requests_in_flight",
			"What is being served: ordinary requests, and streams (watches, logs, upgraded connections).",
			"kind",
		),
		clients: desc("client_connections", "Open connections of clients."),
		connections: desc(
			"upstream_connections",
			"Open connections to the API server that carry requests: shared ones, and those of one "+
				"upgraded request each.",
			"kind",
		),
		dials: desc("upstream_dials_total", "Attempts to connect to the API server for requests, by result.", "result"),
		problems: desc(
			"upstream_problems_total",
			"Requests that could not be forwarded or whose answer could not be used, by cause. They were "+
				"answered with 503, 429, 431 or 500.",
			"cause",
		),
		cacheLookups: desc(
			"review_cache_lookups_total",
			`Questions whether somebody may do something (review="access") or who a token belongs `+
				`to (review="token"), by whether a recent answer was known.`,
			"review",
			"result",
		),
		cacheEntries: desc("review_cache_entries", "Answers that are kept and have not expired.", "review"),
		reviews: desc(
			"reviews_total",
			"SubjectAccessReviews and TokenReviews that the API server was asked for, by what came of them.",
			"review",
			"result",
		),
	}
}

func (s *sizes) describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		s.inFlight, s.clients, s.connections, s.dials, s.problems, s.cacheLookups, s.cacheEntries, s.reviews,
	} {
		to <- desc
	}
	s.admission.describe(to)
}

func (s *sizes) collect(server *Server, to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	count := func(desc *prometheus.Desc, value *atomic.Int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value.Load()), labels...)
	}
	s.admission.collect(server, to)
	serving, streams := server.drain.counts()
	gauge(s.inFlight, int64(serving-streams), "request")
	gauge(s.inFlight, int64(streams), "stream")
	gauge(s.clients, int64(server.edge.Open()))
	up := server.upstream
	gauge(s.connections, up.Counts().Shared.Load(), "shared")
	gauge(s.connections, up.Counts().Upgraded.Load(), "upgraded")
	count(s.dials, &up.Counts().Dialled, "ok")
	count(s.dials, &up.Counts().Undialled, "error")
	for cause := range up.Counts().Problems {
		count(s.problems, &up.Counts().Problems[cause], relay.Problems[cause])
	}
	for _, one := range []struct {
		name    string
		counts  *identity.ReviewCounts
		entries int
	}{
		{"access", &server.access.Counts, server.access.Kept()},
		{"token", &server.tokens.Counts, server.tokens.Kept()},
	} {
		count(s.cacheLookups, &one.counts.Hits, one.name, "hit")
		count(s.cacheLookups, &one.counts.Misses, one.name, "miss")
		gauge(s.cacheEntries, int64(one.entries), one.name)
		count(s.reviews, &one.counts.Yes, one.name, "yes")
		count(s.reviews, &one.counts.No, one.name, "no")
		count(s.reviews, &one.counts.Failed, one.name, "error")
	}
}
