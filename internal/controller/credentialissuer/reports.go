package credentialissuer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// report is the result of a reconcile, for the status.
type report struct {
	issuer  *configv1alpha1.CredentialIssuer
	proxy   configv1alpha1.CredentialIssuerStrategy
	serving *serving.Certificate // in service on this replica, or nil
	waiting *serving.Waiting     // the waiting certificate, or nil
	history serving.History      // including the current revision; set by writeReport
}

// reporting is the state of the goroutine that writes reports. It is separate because the API server may take long to
// accept a report, or refuse it, for example because of an admission webhook. Certificates must not wait for that.
type reporting struct {
	reports chan report             // the latest report, until it is written
	again   chan event.GenericEvent // triggers a reconcile

	// historyProblem is why the revision history could not be written, or nil.
	historyProblem atomic.Pointer[configv1alpha1.StrategyFinding]

	ledger ledger

	lastReportProblem string
	lastAnnounced     announced
	recordedOthers    map[configv1alpha1.StrategyType]strategyState // the content of the latest events
	schema            statusSchema                                  // of the CRD, as far as it is known
	schemaSeen        time.Time
}

// handIn queues a report and replaces an older one. It never blocks, because only Reconcile calls it.
func (r *Reconciler) handIn(next report) {
	select {
	case <-r.reports:
	default:
	}
	r.reports <- next
}

// writeReports writes queued reports until ctx ends. A failed one is retried until there is a newer one.
func (r *Reconciler) writeReports(ctx context.Context) error {
	ctx = log.IntoContext(ctx, ctrl.Log.WithValues("credentialIssuer", r.Names.CredentialIssuer))
	var latest report
	var retry <-chan time.Time
	for wait := firstRetry; ; {
		select {
		case <-ctx.Done():
			return nil
		case latest = <-r.reports:
		case <-retry:
		}
		retry = nil
		if r.writeReport(ctx, latest) {
			wait = firstRetry
			continue
		}
		retry = time.After(wait)
		wait = min(2*wait, lastRetry)
	}
}

// writeReport makes the leader write the status. It returns false if it must be retried.
func (r *Reconciler) writeReport(ctx context.Context, of report) bool {
	if !r.IsLeader() {
		r.ledger, r.lastAnnounced = ledger{}, announced{}
		return true
	}
	// The revision is appended before it is published.
	var historyErr error
	of.history, historyErr = r.appendRevision(ctx, of)
	if r.Usage != nil {
		r.Usage.append(of.history)
	}
	r.reportProblem(ctx, of.issuer, &r.historyProblem, findingOf(configv1alpha1.CodeRevisionsNotKept, historyErr))
	err := client.IgnoreNotFound(r.writeStatus(ctx, of)) // recreation triggers a reconcile
	switch {
	case err == nil:
		r.lastReportProblem = ""
	case r.lastReportProblem != err.Error() && ctx.Err() == nil:
		r.lastReportProblem = err.Error()
		logs.Warn(ctx, "Failed to update the status of the CredentialIssuer", "problem", err.Error())
	}
	return errors.Join(historyErr, err) == nil
}

// reportProblem logs a problem when it begins, and triggers a reconcile when it changes, to update the status.
func (r *Reconciler) reportProblem(
	ctx context.Context,
	issuer *configv1alpha1.CredentialIssuer,
	last *atomic.Pointer[configv1alpha1.StrategyFinding],
	problem *configv1alpha1.StrategyFinding,
) {
	if equality.Semantic.DeepEqual(last.Swap(problem), problem) {
		return
	}
	if problem != nil {
		logs.Warn(ctx, "Failed to write the revision history", "problem", problem.Message)
	}
	select {
	case r.again <- event.GenericEvent{Object: issuer}:
	default:
	}
}
