package concierge

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// The ConfigMap in which the API server publishes the front proxy settings.
const (
	trustNamespace = metav1.NamespaceSystem
	trustConfigMap = "extension-apiserver-authentication"
)

const (
	positiveTTL   = 10 * time.Second
	negativeTTL   = time.Second // short, so that a new permission works without a noticeable delay
	reviewTimeout = 10 * time.Second
)

// trust watches the front proxy settings in the ConfigMap extension-apiserver-authentication: CA, names and headers.
type trust struct {
	frontProxyCA *dynamiccertificates.ConfigMapCAController
	headers      *headerrequest.RequestHeaderAuthRequestController
}

func newTrust(client kubernetes.Interface) (*trust, error) {
	frontProxyCA, err := dynamiccertificates.NewDynamicCAFromConfigMapController(
		"client-ca", trustNamespace, trustConfigMap, "requestheader-client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("watching the front proxy's CA: %w", err)
	}
	return &trust{
		frontProxyCA: frontProxyCA,
		headers: headerrequest.NewRequestHeaderAuthRequestController(trustConfigMap, trustNamespace, client,
			"requestheader-username-headers", "requestheader-uid-headers", "requestheader-group-headers",
			"requestheader-extra-headers-prefix", "requestheader-allowed-names"),
	}, nil
}

// prime reads the ConfigMap once.
func (t *trust) prime(ctx context.Context) error {
	if err := errors.Join(t.frontProxyCA.RunOnce(ctx), t.headers.RunOnce(ctx)); err != nil {
		return fmt.Errorf("reading ConfigMap %q in namespace %q: %w", trustConfigMap, trustNamespace, err)
	}
	return nil
}

// check is a readiness check: without the front proxy CA, no request of the API server is accepted.
func (t *trust) check(*http.Request) error {
	if len(t.frontProxyCA.CurrentCABundleContent()) == 0 {
		return fmt.Errorf("ConfigMap %q in namespace %q has no front proxy CA", trustConfigMap, trustNamespace)
	}
	return nil
}

// isFrontProxy is true for a currently valid certificate of the API server's front proxy.
func (t *trust) isFrontProxy(leaf *x509.Certificate) bool {
	options, ok := t.frontProxyCA.VerifyOptions()
	if !ok {
		return false
	}
	if _, err := leaf.Verify(options); err != nil {
		return false
	}
	allowed := t.headers.AllowedClientNames()
	return len(allowed) == 0 || slices.Contains(allowed, leaf.Subject.CommonName)
}

// authenticateFrontProxy authenticates users only by the headers of the front proxy. onlyFrontProxy refuses all other
// clients.
func authenticateFrontProxy(trusted *trust) (genericapiserver.AuthenticationInfo, error) {
	headers := &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider:   trusted.frontProxyCA,
		UsernameHeaders:     headerrequest.StringSliceProviderFunc(trusted.headers.UsernameHeaders),
		UIDHeaders:          headerrequest.StringSliceProviderFunc(trusted.headers.UIDHeaders),
		GroupHeaders:        headerrequest.StringSliceProviderFunc(trusted.headers.GroupHeaders),
		ExtraHeaderPrefixes: headerrequest.StringSliceProviderFunc(trusted.headers.ExtraHeaderPrefixes),
		AllowedClientNames:  headerrequest.StringSliceProviderFunc(trusted.headers.AllowedClientNames),
	}
	authenticator, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:           &apiserver.AnonymousAuthConfig{Enabled: true},
		RequestHeaderConfig: headers,
	}.New()
	if err != nil {
		return genericapiserver.AuthenticationInfo{}, fmt.Errorf("authenticating the front proxy: %w", err)
	}
	return genericapiserver.AuthenticationInfo{Authenticator: authenticator, RequestHeaderConfig: headers}, nil
}

func delegateAuthorization(client kubernetes.Interface) (authorizer.Authorizer, error) {
	probes, err := path.NewAuthorizer(probePaths())
	if err != nil {
		return nil, fmt.Errorf("allowing health probes: %w", err)
	}
	reviews, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(),
		AllowCacheTTL:             positiveTTL,
		DenyCacheTTL:              negativeTTL,
		WebhookRetryBackoff:       &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5},
	}.New()
	if err != nil {
		return nil, fmt.Errorf("delegating authorization: %w", err)
	}
	combined, err := union.New(
		union.NamedAuthorizer{AuthorizerName: "concierge.pinniped.dev/probes", Authorizer: probes},
		union.NamedAuthorizer{AuthorizerName: "concierge.pinniped.dev/reviews", Authorizer: reviews},
	)
	if err != nil {
		return nil, fmt.Errorf("delegating authorization: %w", err)
	}
	return combined, nil
}
