package proxy

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// admissionMetrics show how much clients hold and cause, and what was refused because of it.
type admissionMetrics struct {
	held, limit, refused    *prometheus.Desc
	running, waiting, begun *prometheus.Desc
	evicted                 *prometheus.Desc
	slowReaders, badLogins  *prometheus.Desc
}

func newAdmissionMetrics() admissionMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pinniped_proxy_"+name, help, labels, nil)
	}
	return admissionMetrics{
		held: desc("memory_held_bytes",
			"How much memory clients hold: all users together, and all clients without a user (owner=strangers).", "owner"),
		limit: desc("memory_limit_bytes", "How much they may, which follows from the memory limit of the pod.", "owner"),
		refused: desc("refused_total",
			"How often there was no room for something: a request was answered with 429 or 503, a stranger's connection was "+
				"closed, or an answer that was not read ended.", "kind"),
		running: desc("work_running",
			"Work that clients cause and of which a few go on at a time, in seats: reviews, logins, certificates that are "+
				"verified, what is computed for clients without a user (looks), and requests at the API server (forwarded), "+
				"where one for a long answer has several seats.", "work"),
		waiting: desc("work_waiting", "The same work, waiting for its turn.", "work"),
		begun:   desc("work_total", "The same work, as often as there was any.", "work"),
		evicted: desc("connections_evicted_total",
			"Connections of clients without a user that were closed to make room for others."),
		slowReaders: desc("slow_readers_ended_total",
			"Answers that were broken off because the client did not read them."),
		badLogins: desc("credentials_refused_total",
			"Credentials that were presented and not accepted, or could not be checked. Only samples of them are in the log."),
	}
}

func (m *admissionMetrics) describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		m.held, m.limit, m.refused, m.running, m.waiting, m.begun, m.evicted, m.slowReaders, m.badLogins,
	} {
		to <- desc
	}
}

func (m *admissionMetrics) collect(server *Server, to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	count := func(desc *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	memory := server.Admission.Memory()
	gauge(m.held, float64(memory.Users), "users")
	gauge(m.held, float64(memory.Strangers), "strangers")
	gauge(m.limit, float64(memory.MostUsers), "users")
	gauge(m.limit, float64(memory.MostStrangers), "strangers")
	for _, usage := range server.Admission.Usage() {
		kind := strings.ReplaceAll(usage.Kind.String(), " ", "_")
		count(m.refused, usage.Refused, kind)
		if usage.Kind.TakesTurns() {
			gauge(m.running, float64(usage.Taken), kind)
			gauge(m.waiting, float64(usage.Waiting), kind)
			count(m.begun, usage.Begun, kind)
		}
	}
	count(m.evicted, server.edge.Evicted())
	count(m.slowReaders, server.readers.ended.Load())
	count(m.badLogins, server.refused.Total())
}
