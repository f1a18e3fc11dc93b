package authenticators

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/keyset"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
)

// The condition types of both kinds.
const (
	TypeTLS           = "TLSConfigurationValid"
	TypeAuthenticator = "AuthenticatorValid"
	TypeReady         = "Ready"
)

const (
	reasonSuccess  = "Success"
	reasonUnknown  = "UnableToValidate"
	reasonChecking = "BeingChecked"
	reasonNotReady = "NotReady"
	reasonTLS      = "InvalidTLSConfig"
	messageUnknown = "unable to validate; see other conditions for details"

	messageTLSBundle      = "spec.tls is valid: using configured CA bundle"
	messageTLSSystemRoots = "spec.tls is valid: no TLS configuration provided: using default root CA bundle from " +
		"container image"
	messagePEMMustBeginWith = `(PEM certificates must begin with "-----BEGIN CERTIFICATE-----")`

	// MessageAuthenticator is the message of a true condition of type TypeAuthenticator.
	MessageAuthenticator = "authenticator initialized"
)

// Good returns a true condition.
func Good(kind, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reasonSuccess, Message: message}
}

// Bad returns a false condition.
func Bad(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// Unknown returns a condition that was not checked because a previous one is not true.
func Unknown(kind string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: reasonUnknown, Message: messageUnknown}
}

// Checking returns a condition that is being checked.
func Checking(kind string) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: metav1.ConditionUnknown, Reason: reasonChecking, Message: "being checked: no " +
			"response yet",
	}
}

// summed adds the condition Ready, which summarizes the others.
func summed(kind string, conditions []metav1.Condition) []metav1.Condition {
	if slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Reason == reasonChecking }) {
		ready := Checking(TypeReady)
		ready.Message = "the " + kind + " is being checked: see other conditions for details"
		return append(conditions, ready)
	}
	if slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Status != metav1.ConditionTrue }) {
		return append(
			conditions,
			Bad(TypeReady, reasonNotReady, "the "+kind+" is not ready: see other conditions for details"),
		)
	}
	return append(conditions, Good(TypeReady, "the "+kind+" is ready"))
}

func phase(conditions []metav1.Condition) authenticationv1alpha1.AuthenticatorPhase {
	switch ready := meta.FindStatusCondition(conditions, TypeReady); {
	case ready == nil || ready.Status == metav1.ConditionFalse:
		return authenticationv1alpha1.PhaseError
	case ready.Status == metav1.ConditionTrue:
		return authenticationv1alpha1.PhaseReady
	default:
		return authenticationv1alpha1.PhasePending
	}
}

// DescribeURLError says why a URL is invalid, without the URL, which may contain a password.
func DescribeURLError(err error) string {
	var parsing *url.Error
	if errors.As(err, &parsing) {
		err = parsing.Err
	}
	return err.Error()
}

// DescribeProbe describes a failed probe for the status. A user who can write an authenticator chooses where the agent
// connects to, so the status must not reveal what is there: a closed port, another protocol and another response have
// the same text, and the details are in the log. Certificate errors, another issuer's name and unusable keys are
// described, because they are needed to configure a CA bundle or an issuer.
func DescribeProbe(err error) string {
	_, ofCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, ofIssuer := errors.AsType[*authenticator.IssuerMismatchError](err)
	_, ofKeys := errors.AsType[*keyset.SkippedError](err)
	if ofCertificate || ofIssuer || ofKeys {
		return Describe(err)
	}
	return "no usable response; see the agent's log"
}

// LogProbe logs a failed probe in full, unless the previous error was the same.
func LogProbe(ctx context.Context, err, before error) {
	if err == nil || before != nil && Describe(before) == Describe(err) {
		return
	}
	logs.Warn(ctx, "Failed to reach the authenticator's endpoint", "problem", Describe(err))
}

// Describe describes a failed probe. The same failure always has the same text, because the status is only written when
// it changes.
func Describe(err error) string {
	var expired x509.CertificateInvalidError
	if errors.As(err, &expired) && expired.Reason == x509.Expired && expired.Cert != nil {
		return fmt.Sprintf("the server's certificate is valid from %s to %s",
			expired.Cert.NotBefore.UTC().Format(time.RFC3339), expired.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	var operation *net.OpError
	if errors.As(err, &operation) && operation.Source != nil {
		stable := *operation
		stable.Source = nil // the ephemeral port differs each time
		err = &stable
	}
	return logs.Truncate(err.Error(), 1000)
}
