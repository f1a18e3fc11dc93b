package proxy

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// scraped is a metric that is read from the running proxy at each scrape.
type scraped struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(s *Server, emit emit)
}

// emit takes one value and its label values.
type emit func(value int64, labels ...string)

func newScraped() []scraped {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	var all []scraped
	add := func(kind prometheus.ValueType, name, help string, read func(*Server, emit), labels ...string) {
		all = append(all, scraped{prometheus.NewDesc("pinniped_proxy_"+name, help, labels, nil), kind, read})
	}
	add(gauge, "requests_in_flight",
		"Requests being served: ordinary requests, and streams (watches, logs, upgraded connections).",
		func(s *Server, emit emit) {
			serving, streams := s.drain.serving.Load(), s.drain.streams.Load()
			emit(max(serving-streams, 0), "request") // the two are not read atomically
			emit(streams, "stream")
		}, "kind")
	add(gauge, "client_connections", "Open client connections.",
		func(s *Server, emit emit) { emit(int64(s.port.Open())) })
	add(counter, "upstream_problems_total",
		"Requests that got 503, 429, 431 or 500, by cause: they could not be forwarded, or the API server sent no usable "+
			"response.",
		func(s *Server, emit emit) {
			for cause, count := range s.upstream.Problems {
				emit(count.Load(), cause)
			}
		}, "cause")
	add(counter, "reviews_total",
		"SubjectAccessReviews and TokenReviews sent to the API server, by result.",
		func(s *Server, emit emit) {
			emit(s.access.Counts.Yes.Load(), "access", "yes")
			emit(s.access.Counts.No.Load(), "access", "no")
			emit(s.access.Counts.Failed.Load(), "access", "error")
			emit(s.tokens.Counts.Yes.Load(), "token", "yes")
			emit(s.tokens.Counts.No.Load(), "token", "no")
			emit(s.tokens.Counts.Failed.Load(), "token", "error")
		}, "review", "result")
	add(gauge, "memory_held_bytes",
		"Memory held by clients: the total for all users, and the total for all unauthenticated clients.",
		func(s *Server, emit emit) {
			emit(s.FlowControl.Memory().Users, "users")
			emit(s.FlowControl.Memory().Unauthenticated, "unauthenticated")
		}, "clients")
	add(
		gauge,
		"memory_limit_bytes",
		"Limit of pinniped_proxy_memory_held_bytes, derived from the memory limit of the pod.",
		func(s *Server, emit emit) {
			emit(s.FlowControl.Memory().MostUsers, "users")
			emit(s.FlowControl.Memory().MostUnauthenticated, "unauthenticated")
		},
		"clients",
	)
	add(counter, "refused_total",
		"Rejections because of a limit, by resource: requests that got 429 or 503, evicted connections of "+
			"unauthenticated clients, and aborted responses to slow clients.",
		func(s *Server, emit emit) {
			for _, usage := range s.FlowControl.Usage() {
				emit(usage.Refused, strings.ReplaceAll(usage.Resource.String(), " ", "_"))
			}
		}, "resource")
	add(gauge, "queued_operations",
		"Operations waiting for a seat, by resource: reviews, logins, verification of client certificates, "+
			"pre-authentication of unauthenticated clients, and requests to the API server (label value: forwarded).",
		func(s *Server, emit emit) {
			for _, usage := range s.FlowControl.Usage() {
				if usage.Resource.HasSeats() {
					emit(int64(usage.Waiting), strings.ReplaceAll(usage.Resource.String(), " ", "_"))
				}
			}
		}, "resource")
	add(counter, "credentials_refused_total",
		"Credentials that were rejected or could not be checked. The log contains only a sample of them.",
		func(s *Server, emit emit) { emit(s.refused.Total()) })
	return all
}
