package webhookauthenticator

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The types of the conditions, in the order in which they are found out; each needs those before it.
const (
	typeTLS           = "TLSConfigurationValid"
	typeEndpoint      = "EndpointURLValid"
	typeConnection    = "WebhookConnectionValid"
	typeAuthenticator = "AuthenticatorValid"
	typeReady         = "Ready"
)

const (
	reasonSuccess           = "Success"
	reasonUnknown           = "UnableToValidate"
	reasonNotReady          = "NotReady"
	reasonTLS               = "InvalidTLSConfig"
	reasonEndpoint          = "InvalidEndpointURL"
	reasonEndpointScheme    = "InvalidEndpointURLScheme"
	reasonEndpointProxy     = "InvalidEndpointCannotDetermineProxy"
	reasonDial              = "UnableToDialServer"
	reasonInstantiate       = "UnableToInstantiateWebhook"
	messageUnknown          = "unable to validate; see other conditions for details"
	messageSkippedBehind    = "skipped dialing connection probe because HTTPS_PROXY is configured for use with the specified host"
	messageDialed           = "successfully dialed webhook server"
	messageEndpoint         = "spec.endpoint is a valid URL"
	messageAuthenticator    = "authenticator initialized"
	messageReady            = "the WebhookAuthenticator is ready"
	messageNotReady         = "the WebhookAuthenticator is not ready: see other conditions for details"
	messageTLSBundle        = "spec.tls is valid: using configured CA bundle"
	messageTLSSystemRoots   = "spec.tls is valid: no TLS configuration provided: using default root CA bundle from container image"
	messagePEMMustBeginWith = `(PEM certificates must begin with "-----BEGIN CERTIFICATE-----")`
)

func good(kind, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reasonSuccess, Message: message}
}

func bad(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func unknown(kind string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: reasonUnknown, Message: messageUnknown}
}
