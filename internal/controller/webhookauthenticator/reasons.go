package webhookauthenticator

// The condition types of this kind only. Each requires those before it: TLS, endpoint, connection, authenticator.
const (
	typeEndpoint   = "EndpointURLValid"
	typeConnection = "WebhookConnectionValid"
)

const (
	reasonEndpoint       = "InvalidEndpointURL"
	reasonEndpointScheme = "InvalidEndpointURLScheme"
	reasonEndpointProxy  = "InvalidEndpointCannotDetermineProxy"
	reasonDial           = "UnableToDialServer"
	reasonInstantiate    = "UnableToInstantiateWebhook"
	messageSkippedBehind = "skipped dialing connection probe because HTTPS_PROXY is configured for use with the " +
		"specified host"
	messageDialed   = "successfully dialed webhook server"
	messageEndpoint = "spec.endpoint is a valid URL"
)
