package agent

import (
	"context"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pinniped-toolkit/pinniped/internal/metrics"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// serveMetrics serves metrics until stop is called, after the last requests have finished, which is later than the end
// of ctx.
func (a *agent) serveMetrics(ctx context.Context, others ...prometheus.Collector) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	// controller-runtime's registry includes the metrics of the process, the Go runtime and the reconcilers.
	server := &metrics.Server{
		Address:   a.config.Metrics.Address,
		Profiling: metrics.Profiling(a.config.Metrics.Pprof),
		Gatherer:  prometheus.Gatherers{a.newRegistry(others), ctrlmetrics.Registry},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// newRegistry returns a registry of the agent's own metrics and others.
func (a *agent) newRegistry(others []prometheus.Collector) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(others...)
	registry.MustRegister(
		servingCertificateMetrics{a.holder},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "pinniped_agent_build_info",
			Help:        "Always 1; the labels contain the versions of the agent and of Go.",
			ConstLabels: prometheus.Labels{"version": a.options.Version, "goversion": runtime.Version()},
		}, func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pinniped_agent_leader",
			Help: "1 if this replica is the leader, else 0.",
		}, func() float64 { return truth(a.leader.Leading()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pinniped_agent_proxy_wanted",
			Help: "1 if the proxy should run: mode enabled, or mode auto and no visible control-plane nodes; else 0.",
		}, func() float64 {
			reconciler := a.issuer.Load()
			return truth(reconciler != nil && reconciler.Wanted())
		}),
	)
	return registry
}

// servingCertificateMetrics reports the certificate in service.
type servingCertificateMetrics struct{ holder *serving.Holder }

var servingCertificateExpiry = prometheus.NewDesc(
	"pinniped_agent_serving_certificate_expiry_timestamp_seconds",
	"Expiry time of this replica's serving certificate, in seconds since 1970, by source (generated or external). Absent "+
		"if there is no certificate.",
	[]string{"source"},
	nil,
)

var servingCertificateFindings = prometheus.NewDesc(
	"pinniped_agent_serving_certificate_findings",
	"1 for each finding about the configured certificate, by code and severity. If any finding is an error or "+
		"TransitionPrepared, the last known good certificate stays in service.",
	[]string{"code", "severity"},
	nil,
)

var servingCertificateTransition = prometheus.NewDesc(
	"pinniped_agent_serving_certificate_transition_until_timestamp_seconds",
	"Deadline of a transition: the agent serves the new certificate by then, in seconds since 1970. "+
		"Absent if there is no transition.",
	nil,
	nil,
)

// Describe implements prometheus.Collector.
func (m servingCertificateMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- servingCertificateExpiry
	to <- servingCertificateFindings
	to <- servingCertificateTransition
}

// Collect implements prometheus.Collector.
func (m servingCertificateMetrics) Collect(to chan<- prometheus.Metric) {
	if inService := m.holder.Current(); inService != nil {
		to <- prometheus.MustNewConstMetric(servingCertificateExpiry, prometheus.GaugeValue,
			float64(inService.Certificate.Leaf.NotAfter.Unix()), string(inService.Source))
	}
	evaluation := m.holder.Evaluation()
	severities := map[certs.Code]string{}
	for _, warning := range evaluation.Warnings {
		severities[warning.Code] = certs.SeverityWarning.String() // also for errors that the agent only warns about
	}
	if evaluation.Waiting != nil {
		to <- prometheus.MustNewConstMetric(servingCertificateTransition, prometheus.GaugeValue,
			float64(evaluation.Waiting.Until.Unix()))
		severities[configv1alpha1.CodeTransitionPrepared] = certs.SeverityWarning.String()
	}
	for _, finding := range evaluation.Further {
		severities[finding.Code] = certs.SeverityError.String()
	}
	if evaluation.Refusal != nil {
		severities[evaluation.Refusal.Finding.Code] = certs.SeverityError.String()
	}
	for code, severity := range severities {
		to <- prometheus.MustNewConstMetric(servingCertificateFindings, prometheus.GaugeValue, 1, string(code), severity)
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
