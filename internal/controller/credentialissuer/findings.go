package credentialissuer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// maxFindings is the maximum number of findings of a strategy in the CRD.
const maxFindings = 50

// codedError is an error with the code of its finding.
type codedError struct {
	code string
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// coded sets the code of err's finding. The outermost code counts. It returns nil for a nil error.
func coded(code string, err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code: code, err: err}
}

func newFinding(code string, severity configv1alpha1.FindingSeverity, message string) configv1alpha1.StrategyFinding {
	return configv1alpha1.StrategyFinding{Code: code, Severity: severity, Message: clip(strings.ToValidUTF8(message, ""))}
}

// findingOf returns err as a warning, or nil for a nil error.
func findingOf(code string, err error) *configv1alpha1.StrategyFinding {
	if err == nil {
		return nil
	}
	finding := newFinding(code, configv1alpha1.FindingWarning, err.Error())
	return &finding
}

// certificateFinding converts a finding of pkg/certs to one of the status with this severity, which is lower for an
// error that does not keep the certificate out of service. Informational findings stay so.
func certificateFinding(f certs.Finding, severity configv1alpha1.FindingSeverity) configv1alpha1.StrategyFinding {
	if severity == configv1alpha1.FindingWarning && f.Severity == certs.SeverityInfo {
		severity = configv1alpha1.FindingInfo
	}
	message := f.Message
	if f.Hint != "" {
		message += " (" + f.Hint + ")"
	}
	return newFinding(string(f.Code), severity, message)
}

// findingsOf returns one finding for each of the errors that are joined in err.
func findingsOf(err error) []configv1alpha1.StrategyFinding {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // joined at the top level only
		var all []configv1alpha1.StrategyFinding
		for _, part := range joined.Unwrap() {
			all = append(all, findingsOf(part)...)
		}
		return all
	}
	var refusal *serving.Refusal
	if errors.As(err, &refusal) {
		return []configv1alpha1.StrategyFinding{certificateFinding(refusal.Finding, configv1alpha1.FindingError)}
	}
	return []configv1alpha1.StrategyFinding{newFinding(codeOf(err), configv1alpha1.FindingError, err.Error())}
}

func codeOf(err error) string {
	var known *codedError
	switch {
	case errors.Is(err, errNotLeader):
		return configv1alpha1.CodeWaitingForLeader
	case issuedcert.ChangedMeanwhile(err):
		return configv1alpha1.CodeWriteConflict
	case errors.Is(err, serving.ErrPending):
		return configv1alpha1.CodeServiceAddressPending
	case errors.As(err, &known):
		return known.code
	}
	return configv1alpha1.CodeSetupFailed
}

// besides returns the findings about the requested certificate, which do not depend on the strategy's status, and the
// non-nil others.
func besides(
	evaluation serving.Evaluation,
	others ...*configv1alpha1.StrategyFinding,
) []configv1alpha1.StrategyFinding {
	var all []configv1alpha1.StrategyFinding
	if evaluation.Refusal != nil {
		all = findingsOf(evaluation.Refusal)
	}
	for _, finding := range evaluation.Further {
		all = append(all, certificateFinding(finding, configv1alpha1.FindingError))
	}
	for _, finding := range evaluation.Warnings {
		all = append(all, certificateFinding(finding, configv1alpha1.FindingWarning))
	}
	for _, other := range others {
		if other != nil {
			all = append(all, newFinding(other.Code, other.Severity, other.Message))
		}
	}
	return all
}

// waits returns the finding for a waiting certificate, or nil.
func waits(evaluation serving.Evaluation, namespace string) *configv1alpha1.StrategyFinding {
	if evaluation.Waiting == nil {
		return nil
	}
	finding := newFinding(configv1alpha1.CodeTransitionPrepared, configv1alpha1.FindingWarning,
		evaluation.Waiting.Message(namespace))
	return &finding
}

// withFindings adds findings to a strategy: deduplicated, sorted by severity, limited to maxFindings.
func withFindings(
	strategy configv1alpha1.CredentialIssuerStrategy,
	more ...configv1alpha1.StrategyFinding,
) configv1alpha1.CredentialIssuerStrategy {
	var all []configv1alpha1.StrategyFinding
	for _, finding := range append(slices.Clone(strategy.Findings), more...) {
		if !slices.Contains(all, finding) {
			all = append(all, finding)
		}
	}
	slices.SortStableFunc(
		all,
		func(a, b configv1alpha1.StrategyFinding) int { return cmp.Compare(rank(a.Severity), rank(b.Severity)) },
	)
	if omitted := len(all) - maxFindings + 1; omitted > 1 {
		all = append(all[:maxFindings-1], newFinding(configv1alpha1.CodeFindingsOmitted, configv1alpha1.FindingInfo,
			fmt.Sprintf("%d more findings are not listed", omitted)))
	}
	strategy.Findings = all
	return strategy
}

func rank(severity configv1alpha1.FindingSeverity) int {
	switch severity {
	case configv1alpha1.FindingError:
		return 0
	case configv1alpha1.FindingWarning:
		return 1
	case configv1alpha1.FindingInfo:
	}
	return 2
}
