package credentialissuer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// report is what came of one look at the CredentialIssuer, for the status.
type report struct {
	issuer  *configv1alpha1.CredentialIssuer
	proxy   configv1alpha1.CredentialIssuerStrategy
	serving *serving.Certificate // what clients get, or nil
	waiting *serving.Waiting     // a renewed certificate that waits, or nil
	history serving.History      // this revision included; writeReport sets it
}

// reporting is what the goroutine that writes reports has of its own. The API server may take long to accept a
// report, or refuse it, for example because an admission webhook does not answer. No certificate waits for that.
type reporting struct {
	reports chan report             // the latest one, until it is written
	again   chan event.GenericEvent // wakes Reconcile

	// historyProblem is why the revision history is not written; nil if it is.
	historyProblem atomic.Pointer[configv1alpha1.StrategyFinding]

	ledger ledger

	lastReportProblem string
	lastAnnounced     announced
	recordedOthers    map[configv1alpha1.StrategyType]strategyState // what the latest events said
	schema            statusSchema                                  // of the CRD, as far as it is known
	schemaSeen        time.Time
}

// handIn leaves a report to be written, instead of one that waits. Only Reconcile calls it, so there is always room.
func (r *Reconciler) handIn(next report) {
	select {
	case <-r.reports:
	default:
	}
	r.reports <- next
}

// writeReports writes what is handed in, until ctx ends. What fails is tried again until there is something newer.
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

// writeReport lets the leader write the status, and returns whether nothing is left to be done.
func (r *Reconciler) writeReport(ctx context.Context, of report) bool {
	if !r.IsLeader() {
		r.ledger, r.lastAnnounced = ledger{}, announced{}
		return true
	}
	// The revision is appended before it is published.
	var historyErr error
	of.history, historyErr = r.appendRevision(ctx, of)
	r.reportProblem(ctx, of.issuer, &r.historyProblem, findingOf(configv1alpha1.CodeRevisionsNotKept, historyErr))
	err := client.IgnoreNotFound(r.writeStatus(ctx, of)) // what is made again wakes Reconcile
	switch {
	case err == nil:
		r.lastReportProblem = ""
	case r.lastReportProblem != err.Error() && ctx.Err() == nil:
		r.lastReportProblem = err.Error()
		logs.Warn(ctx, "Failed to update the status of the CredentialIssuer", "problem", err.Error())
	}
	return errors.Join(historyErr, err) == nil
}

// reportProblem logs a problem and adds it to the status, or removes it when it is over.
func (r *Reconciler) reportProblem(
	ctx context.Context,
	issuer *configv1alpha1.CredentialIssuer,
	last *atomic.Pointer[configv1alpha1.StrategyFinding],
	problem *configv1alpha1.StrategyFinding,
) {
	if before := last.Swap(problem); (before == nil) == (problem == nil) {
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
