package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/privilege"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

const (
	selfCheckInterval = 10 * time.Minute
	selfCheckRetry    = 2 * time.Second // without a token or a response
	selfCheckTimeout  = 30 * time.Second
)

// selfCheck regularly asks the API server, with the upstream credential itself, whether that credential can do more
// than impersonate. It only reports the result: a binding for all service accounts must not stop the proxy.
type selfCheck struct {
	config  *rest.Config // without credentials
	token   relay.TokenSource
	checker privilege.Checker
	changed func() // called when the result changes

	last atomic.Pointer[privilege.Report] // nil before the first check
}

func (a *agent) newSelfCheck(token relay.TokenSource) *selfCheck {
	return &selfCheck{
		config: rest.AnonymousClientConfig(a.rest),
		token:  token,
		checker: privilege.Checker{
			Namespaces: []string{a.options.Namespace, "kube-system"},
			OpenGroups: []string{a.groups.Login.Group, a.groups.Identity.Group},
			Reviews:    a.kube.AuthorizationV1().SubjectAccessReviews(),
		},
		changed: a.triggers.fireAll,
	}
}

// run checks until ctx ends.
func (s *selfCheck) run(ctx context.Context) {
	for ctx.Err() == nil {
		next := selfCheckInterval
		if err := s.check(ctx); err != nil {
			next = selfCheckRetry
			logr.FromContextOrDiscard(ctx).V(2).Info(
				"Failed to check the permissions of the upstream credential", "problem", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		}
	}
}

func (s *selfCheck) check(ctx context.Context) error {
	token, err := s.token.Token()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, selfCheckTimeout)
	defer cancel()
	config := rest.CopyConfig(s.config)
	config.BearerToken = token
	report, err := s.checker.Check(ctx, config)
	if err != nil {
		return err
	}
	before := s.last.Swap(&report)
	logger := logr.FromContextOrDiscard(ctx)
	switch {
	case before != nil && before.String() == report.String():
		return nil
	case len(report.Excess) > 0:
		logs.Warn(ctx, "Found excess permissions of the upstream credential",
			"rules", len(report.Excess), "excess", report.String())
	default:
		logger.Info("Checked the permissions of the upstream credential", "listComplete", !report.Incomplete)
	}
	if before != nil || len(report.Excess) > 0 {
		s.changed()
	}
	return nil
}

// warning returns the finding for the status, or nil if there are no excess permissions.
func (s *selfCheck) warning() *configv1alpha1.StrategyFinding {
	report := s.last.Load()
	if report == nil || len(report.Excess) == 0 {
		return nil
	}
	return &configv1alpha1.StrategyFinding{
		Code: configv1alpha1.CodeUpstreamCredentialExcess, Severity: configv1alpha1.FindingWarning,
		Message: "the proxy's own credential can do more than impersonate: " + report.String(),
	}
}

var upstreamCredentialExcess = prometheus.NewDesc(
	"pinniped_agent_upstream_credential_excess_rules",
	"Number of RBAC rules that let the proxy's credential do more than impersonate; should be 0. Absent until checked.",
	nil,
	nil,
)

// Describe implements prometheus.Collector.
func (s *selfCheck) Describe(to chan<- *prometheus.Desc) { to <- upstreamCredentialExcess }

// Collect implements prometheus.Collector.
func (s *selfCheck) Collect(to chan<- prometheus.Metric) {
	if report := s.last.Load(); report != nil {
		to <- prometheus.MustNewConstMetric(upstreamCredentialExcess, prometheus.GaugeValue, float64(len(report.Excess)))
	}
}
