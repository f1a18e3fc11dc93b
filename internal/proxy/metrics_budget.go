package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// budgetMetrics show how much of the budget is used, and what was refused because of it.
type budgetMetrics struct {
	held, limit, refused   *prometheus.Desc
	evicted, misused       *prometheus.Desc
	waiting, handshakes    *prometheus.Desc
	slowReaders, badLogins *prometheus.Desc
}

func newBudgetMetrics() budgetMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pinniped_proxy_"+name, help, labels, nil)
	}
	return budgetMetrics{
		held: desc("budget_held", "How much of a resource clients hold: all together (share=total), all without a user "+
			"(share=unauthenticated), and the user who holds most (share=perUser).", "resource", "share"),
		limit: desc(
			"budget_limit",
			"The bounds of what clients may hold; 0 means that a share has none.",
			"resource",
			"share",
		),
		refused: desc(
			"budget_refused_total",
			"How often a share was full: a connection was closed, or a request was answered with 429 or 503.",
			"resource",
			"share",
		),
		evicted: desc(
			"connections_evicted_total",
			"Connections that were closed to make room for new ones, or for the headers of others.",
		),
		waiting: desc(
			"connections_waiting",
			"Connections that are not read until there is memory for their header, because a share of bytes is full of headers "+
				"that are not complete.",
		),
		handshakes: desc(
			"tls_handshakes_waiting",
			"TLS handshakes that wait for their turn, and connections that wait for a place because of them.",
		),
		misused: desc(
			"connections_misused_total",
			"Connections that were closed because most requests on them were reset by the client, or refused, or because most of "+
				"what was sent came to nothing.",
		),
		slowReaders: desc(
			"slow_readers_ended_total",
			"Answers that were broken off because the client did not read them: ordinary answers that "+
				"were read too slowly, and streams when too much waited in memory.",
		),
		badLogins: desc(
			"credentials_refused_total",
			"Credentials that were presented and not accepted, or could not be checked. Only samples of them are in the log.",
		),
	}
}

func (m *budgetMetrics) describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		m.held, m.limit, m.refused, m.evicted, m.waiting, m.handshakes, m.misused, m.slowReaders, m.badLogins,
	} {
		to <- desc
	}
}

func (m *budgetMetrics) collect(server *Server, to chan<- prometheus.Metric) {
	b, limits := server.budget, server.budget.Limits()
	for r := range budget.NumResources {
		for s := range budget.NumShares {
			to <- prometheus.MustNewConstMetric(m.limit, prometheus.GaugeValue, float64(limits[r][s]), r.String(), s.String())
			to <- prometheus.MustNewConstMetric(
				m.refused, prometheus.CounterValue, float64(b.Refused(r, s)), r.String(), s.String(),
			)
		}
		if r == budget.Resets {
			continue // nothing that is held
		}
		for s, held := range map[budget.Share]int64{
			budget.Total: b.Held(r), budget.Unauthenticated: b.HeldUnauthenticated(r), budget.PerUser: b.Largest(r),
		} {
			to <- prometheus.MustNewConstMetric(m.held, prometheus.GaugeValue, float64(held), r.String(), s.String())
		}
	}
	to <- prometheus.MustNewConstMetric(m.evicted, prometheus.CounterValue, float64(server.open.evicted.Load()))
	to <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(server.open.headers.waiting.Load()))
	to <- prometheus.MustNewConstMetric(m.handshakes, prometheus.GaugeValue, float64(server.open.waitForHandshakes()))
	to <- prometheus.MustNewConstMetric(m.misused, prometheus.CounterValue, float64(server.open.misused.Load()))
	to <- prometheus.MustNewConstMetric(m.slowReaders, prometheus.CounterValue, float64(server.readers.ended.Load()))
	to <- prometheus.MustNewConstMetric(m.badLogins, prometheus.CounterValue, float64(server.refused.Total()))
}
