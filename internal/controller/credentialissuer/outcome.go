package credentialissuer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// result is the result of a decision.
type result struct {
	decision
	failed     map[step]error // the error that ended each failed step
	serviceErr error          // of the Service in front of the proxy

	serving *serving.Certificate // in service after the actions, or nil
	listens bool                 // whether the proxy listens
	// warnings are additional findings; nil entries are ignored.
	warnings []*configv1alpha1.StrategyFinding
}

// failure joins all errors found before or during the actions, except failed renewals of valid certificates.
func (d *decision) failure(failed map[step]error) error {
	var all []error
	for _, at := range []step{stepSigner, stepLoad, stepSwitch, stepTidy} {
		all = append(all, d.errs[at], failed[at])
	}
	return errors.Join(all...)
}

// errorOf returns the error of one step.
func (r *result) errorOf(at step) error {
	// A single error keeps its text and type.
	switch known, failed := r.errs[at], r.failed[at]; {
	case failed == nil:
		return known
	case known == nil:
		return failed
	default:
		return errors.Join(known, failed)
	}
}

// loadErr returns why the right certificate is not in service. A delegated certificate without permission that cannot
// be replaced has its own code.
func (r *result) loadErr() error {
	err := r.errorOf(stepLoad)
	if err == nil || r.replaces == nil {
		return err
	}
	return coded(configv1alpha1.CodePermissionWithdrawn,
		fmt.Errorf("replacing the certificate in Secret %q: %w: %w", r.replaces.Secret, errRevoked, err))
}

// strategy returns the strategy of a proxy that should run. The error, if any, is one that a retry may fix.
func (r *result) strategy() (configv1alpha1.CredentialIssuerStrategy, error) {
	// Problems with the Service or the signer do not stop a replica from serving. They are reported if there is nothing
	// worse.
	problem := r.serviceErr
	if problem == nil {
		problem = r.errorOf(stepSigner)
	}
	if err := r.errorOf(stepSwitch); err != nil {
		return errorStrategy(err), err
	}
	if err := r.loadErr(); err != nil {
		return withFindings(r.brokenButServing(err), besides(r.evaluation)...), err
	}
	if err := r.errorOf(stepTidy); err != nil {
		return r.brokenButServing(err), err
	}
	more := besides(r.evaluation, r.warnings...)
	for _, err := range []error{problem, r.addressErr} {
		more = append(more, findingsOf(err)...)
	}
	return withFindings(r.running(r.evaluation, problem), more...), problem
}

// running returns the strategy of a proxy that serves, if it can. Its findings include what determines its status.
func (r *result) running(evaluation serving.Evaluation, problem error) configv1alpha1.CredentialIssuerStrategy {
	switch {
	case evaluation.Refusal != nil:
		return r.brokenButServing(evaluation.Refusal)
	case problem != nil:
		return r.brokenButServing(problem)
	case errors.Is(r.addressErr, serving.ErrPending):
		pending := proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonPending, r.addressErr.Error())
		return withFindings(pending, findingsOf(r.addressErr)...)
	case r.addressErr != nil:
		return errorStrategy(r.addressErr)
	case r.serving == nil: // just withdrawn, which triggers a reconcile
		return errorStrategy(serving.ErrNoCertificate)
	}
	strategy := proxyStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonListening,
		listening(evaluation.Warnings, r.warnings...))
	strategy.Frontend = frontend(r.at, r.serving.Bundle)
	return strategy
}

// listening returns the message of a proxy that serves, with all warnings. nil entries of others are ignored.
func listening(warnings []certs.Finding, others ...*configv1alpha1.StrategyFinding) string {
	var sentences []string
	for _, warning := range warnings {
		sentences = append(sentences, serving.Sentence(warning))
	}
	for _, other := range others {
		if other != nil {
			sentences = append(sentences, other.Message)
		}
	}
	if len(sentences) == 0 {
		return messageListening
	}
	return messageListening + ", but: " + strings.Join(sentences, "; ")
}

// errorStrategy returns the strategy for an error. Its reason is Pending if the error resolves without intervention.
func errorStrategy(err error) configv1alpha1.CredentialIssuerStrategy {
	strategy := proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup, err.Error())
	var refusal *serving.Refusal
	if errors.As(err, &refusal) && refusal.Finding.Pending || errors.Is(err, errNotLeader) ||
		issuedcert.ChangedMeanwhile(err) {
		strategy.Reason = configv1alpha1.ReasonPending
	}
	return withFindings(strategy, findingsOf(err)...)
}

// brokenButServing returns the strategy for an error. It has the frontend if a certificate is still in service at a
// known address, so that clients can connect although the strategy needs a fix.
func (r *result) brokenButServing(err error) configv1alpha1.CredentialIssuerStrategy {
	strategy := errorStrategy(err)
	if r.serving == nil || r.addressErr != nil || !r.listens || errors.Is(err, errRevoked) {
		return strategy
	}
	strategy.Frontend = frontend(r.at, r.serving.Bundle)
	code, what := configv1alpha1.CodeLastKnownGoodCertificateServed,
		"the certificate in Secret %s (SHA-256 %s) stays in service until this is fixed"
	var refusal *serving.Refusal
	if errors.As(err, &refusal) && refusal.Finding.Code == certs.SecretNotPermitted &&
		r.serving.Source == serving.SourceGenerated {
		code = configv1alpha1.CodeGeneratedCertificateServed
		what = "the generated certificate in Secret %s (SHA-256 %s) is served instead until this is fixed"
	}
	what = fmt.Sprintf(what, r.serving.Secret, r.serving.SHA256())
	strategy.Message += "; " + what
	return withFindings(strategy, newFinding(code, configv1alpha1.FindingInfo, what))
}
