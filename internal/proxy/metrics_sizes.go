package proxy

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/work"
)

// sizes are the metrics that are read from the running proxy when they are scraped. The proxy keeps them as plain
// atomics, which are zero when it starts.
type sizes struct {
	inFlight, clients, connections, dials, problems *prometheus.Desc
	cacheLookups, cacheEntries, reviews             *prometheus.Desc
	running, waiting, begun, refused                *prometheus.Desc
	budget                                          budgetMetrics
}

func newSizes() sizes {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pinniped_proxy_"+name, help, labels, nil)
	}
	return sizes{
		budget: newBudgetMetrics(),
		inFlight: desc(
			"requests_in_flight",
			"What is being served: ordinary requests, and streams (watches, logs, upgraded connections).",
			"kind",
		),
		clients: desc("client_connections", "Open connections of clients, without those that switched protocols."),
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
		running: desc(
			"work_running",
			"Work that clients cause and of which a few go on at a time: reviews, logins, certificates that are verified, and "+
				"ordinary requests that are at the API server; those for long answers are counted apart, too, and so are all "+
				"users together (`all_requests`, `all_long_answers`) and watches that begin with all objects (`watch`).",
			"work",
		),
		waiting: desc("work_waiting", "The same work, waiting for its turn.", "work"),
		begun:   desc("work_total", "The same work, as often as there was any.", "work"),
		refused: desc(
			"work_refused_total",
			"The same work, refused with 429 or 503 because a user or a connection waits for too much of it.",
			"work",
		),
	}
}

func (s *sizes) describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		s.inFlight, s.clients, s.connections, s.dials, s.problems, s.cacheLookups, s.cacheEntries, s.reviews,
		s.running, s.waiting, s.begun, s.refused,
	} {
		to <- desc
	}
	s.budget.describe(to)
}

func (s *sizes) collect(server *Server, to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	count := func(desc *prometheus.Desc, value *atomic.Int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value.Load()), labels...)
	}
	s.collectWork(server.work, to)
	s.budget.collect(server, to)
	serving, streams := server.drain.counts()
	gauge(s.inFlight, int64(serving-streams), "request")
	gauge(s.inFlight, int64(streams), "stream")
	gauge(s.clients, server.clients.Load())
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

// collectWork collects what there is of each kind of work.
func (s *sizes) collectWork(all work.All, to chan<- prometheus.Metric) {
	for name, one := range map[string]*work.Queue{
		"access_review": all.Access, "token_review": all.Tokens, "login": all.Logins, "certificate": all.Certificates,
		"request": all.Forwarded, "long_answer": all.Long,
		"all_requests": all.All, "all_long_answers": all.AllLong, "watch": all.Watches,
	} {
		to <- prometheus.MustNewConstMetric(s.running, prometheus.GaugeValue, float64(one.Fair.Running()), name)
		to <- prometheus.MustNewConstMetric(s.waiting, prometheus.GaugeValue, float64(one.Fair.Waiting()), name)
		to <- prometheus.MustNewConstMetric(s.begun, prometheus.CounterValue, float64(one.Begun.Load()), name)
		to <- prometheus.MustNewConstMetric(s.refused, prometheus.CounterValue, float64(one.Refused.Load()), name)
	}
}
