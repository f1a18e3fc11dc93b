// Package concierge serves the aggregated APIs: TokenCredentialRequest, which exchanges a token for a short-lived
// credential, and WhoAmIRequest, which returns the caller's identity.
//
// Nothing is stored. The Kubernetes API server forwards requests here and asserts the user, authenticated by its front
// proxy client certificate; other clients may only send health probes. Every request is authorized by a
// SubjectAccessReview. RBAC permits every client to create a TokenCredentialRequest, because it has no identity yet.
// Its token is only passed to the authenticator that the request names, and is never logged.
package concierge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	goruntime "runtime"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	registry "k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/pinniped-toolkit/pinniped/internal/concierge/openapi"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// ServingCertificate provides the certificate of the server.
type ServingCertificate interface {
	// CertKeyPEM returns the certificate chain and the private key, or nothing while there are none: handshakes then
	// fail.
	CertKeyPEM() (certPEM, keyPEM []byte)
	// OnChange registers changed to be called after each change. New connections get the new certificate; existing ones
	// continue.
	OnChange(changed func())
}

// Options configures the server.
type Options struct {
	// Listener is the listener for the API server. New takes ownership of it.
	Listener net.Listener
	// ServingCertificate must verify with the caBundle of the APIServices.
	ServingCertificate ServingCertificate
	// MinTLSVersion is the minimum TLS version; zero means 1.3.
	MinTLSVersion uint16
	// Agent is the agent's own client configuration for the API server.
	Agent *rest.Config
	// GroupSuffix is the suffix of the API groups.
	GroupSuffix string
	// DisableAdmissionPlugins are the names of the admission plugins not to run.
	DisableAdmissionPlugins []string

	Authenticator TokenAuthenticator
	Issuer        ClientCertificateIssuer
	// ClusterSigner, if set, issues certificates for logins at the API server itself.
	ClusterSigner ClusterSigner
	// Port tracks and limits the connections and requests of clients; nil means one for this server only. Logins limits
	// concurrent TokenCredentialRequests; nil means limits by the flow control of Port.
	Port   *listener.Port
	Logins *LoginLimits
	// UserTokens, if set, issues tokens of service accounts.
	UserTokens UserTokens
	// CredentialLife is the lifetime of issued client certificates; zero means DefaultCredentialLife.
	CredentialLife time.Duration

	// Ready returns an error while the agent is not ready; /readyz then fails. Nil means always ready.
	Ready func() error
	// ShutdownDelay is how long a stopping server continues to serve after /readyz fails, before it drains connections.
	ShutdownDelay time.Duration
	// AuditLogUsernamesAndGroups adds usernames and groups to the audit log; otherwise they are redacted.
	AuditLogUsernamesAndGroups bool
}

func (o *Options) validate() error {
	switch {
	case o.Listener == nil:
		return errors.New("a listener is required")
	case o.ServingCertificate == nil:
		return errors.New("a serving certificate is required")
	case o.Agent == nil:
		return errors.New("a client configuration is required")
	case o.Authenticator == nil:
		return errors.New("an authenticator is required")
	case o.Issuer == nil:
		return errors.New("an issuer of client certificates is required")
	}
	if err := apis.ValidateGroupSuffix(o.GroupSuffix); err != nil {
		return fmt.Errorf("API group suffix: %w", err)
	}
	return nil
}

// Server is the aggregated API server. Create it with New.
type Server struct {
	generic *genericapiserver.GenericAPIServer
	trusted *trust
}

// New returns a server that is not running yet. It reads the front proxy settings and the supported admission plugins
// from the API server, and fails when it cannot. Messages go to the logger in ctx; ctx is not kept.
func New(ctx context.Context, options Options) (*Server, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
	client, dynamicClient, err := clients(options.Agent)
	if err != nil {
		return nil, err
	}
	trusted, err := newTrust(client)
	if err != nil {
		return nil, err
	}
	if err := trusted.prime(ctx); err != nil {
		return nil, err
	}

	groups := apis.GroupsFor(options.GroupSuffix)
	scheme, err := newServerScheme(groups)
	if err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.FeatureGate = utilfeature.DefaultFeatureGate
	config.ExternalAddress = options.Listener.Addr().String()
	// nothing in this server uses it, so no privileged loopback token is created
	config.LoopbackClientConfig = &rest.Config{}
	config.EnableProfiling = false
	config.StorageObjectCountTracker = nil
	config.RequestInfoResolver = request.NewInfoResolver() // it runs before authentication
	config.ShutdownDelayDuration = options.ShutdownDelay
	describeAPI(config, newWireScheme(groups))
	if options.Port == nil {
		limits := flowcontrol.APILimitsFor(flowcontrol.DefaultMemory, goruntime.GOMAXPROCS(0))
		options.Port = listener.New(flowcontrol.New(limits))
	}
	logins := options.Logins
	if logins == nil {
		logins = NewLoginLimits(options.Port.FlowControl())
	}
	options.Listener = options.Port.Listen(options.Listener)
	config.SecureServing = secureServing(options, trusted)
	config.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		handler = logins.apply(handler, groups.Login, codecs)
		handler = genericapiserver.DefaultBuildHandlerChain(handler, c)
		handler = onlyFrontProxy(keepFrontProxyConnection(withSourceIPs(handler)), trusted.isFrontProxy)
		return options.Port.Handler(handler, tooMany)
	}

	if config.Authentication, err = authenticateFrontProxy(trusted); err != nil {
		return nil, err
	}
	if config.Authorization.Authorizer, err = delegateAuthorization(client); err != nil {
		return nil, err
	}
	shared := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutManagedFields))
	if err := addAdmission(ctx, config, options.DisableAdmissionPlugins, client, dynamicClient, shared); err != nil {
		return nil, err
	}
	config.AddReadyzChecks(healthz.NamedCheck("front-proxy-trust", trusted.check))
	if options.Ready != nil {
		config.AddReadyzChecks(healthz.NamedCheck("agent", func(*http.Request) error { return options.Ready() }))
	}

	generic, err := config.Complete(shared).New("pinniped-agent", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("building the aggregated API server: %w", err)
	}
	audit := auditLog{logger: klog.FromContext(ctx), showNames: options.AuditLogUsernamesAndGroups}
	issuers := issuers{
		agent: options.Issuer, cluster: options.ClusterSigner, tokens: options.UserTokens, group: groups.Login.Group,
	}
	requests := newCredentialRequests(options.Authenticator, issuers, options.CredentialLife, audit)
	requests.ended = &logins.ended
	if err := install(generic, scheme, codecs, groups, requests); err != nil {
		return nil, err
	}
	return &Server{generic: generic, trusted: trusted}, nil
}

// Run serves until ctx ends. It returns after all requests have finished, at most a minute after the shutdown delay.
func (s *Server) Run(ctx context.Context) error {
	go s.trusted.headers.Run(ctx, 1) // the server itself watches the CAs, which it lists in handshakes
	if err := s.generic.PrepareRun().RunWithContext(ctx); err != nil {
		return fmt.Errorf("serving the aggregated APIs: %w", err)
	}
	return nil
}

func clients(agent *rest.Config) (kubernetes.Interface, dynamic.Interface, error) {
	config := rest.CopyConfig(agent)
	config.QPS, config.Burst = 200, 400 // each request may need a review; the API server limits itself
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a client for the API server: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a client for the API server: %w", err)
	}
	return client, dynamicClient, nil
}

func secureServing(options Options, trusted *trust) *genericapiserver.SecureServingInfo {
	minVersion := options.MinTLSVersion
	if minVersion == 0 {
		minVersion = tls.VersionTLS13
	}
	return &genericapiserver.SecureServingInfo{
		Listener:      options.Listener,
		Cert:          servedCertificate{options.ServingCertificate},
		ClientCA:      trusted.frontProxyCA,
		MinTLSVersion: minVersion,
		// Without P-521 and P-384, whose handshakes cost the server several times as much as a client that replays one.
		CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256},
	}
}

// servedCertificate adapts a ServingCertificate to the API server library.
type servedCertificate struct{ source ServingCertificate }

func (s servedCertificate) Name() string { return "aggregated API serving certificate" }

func (s servedCertificate) CurrentCertKeyContent() ([]byte, []byte) { return s.source.CertKeyPEM() }

func (s servedCertificate) AddListener(listener dynamiccertificates.Listener) {
	s.source.OnChange(listener.Enqueue)
}

func describeAPI(config *genericapiserver.Config, wire *runtime.Scheme) {
	namer := openapinamer.NewDefinitionNamer(wire)
	name := func(definition string) (string, spec.Extensions) {
		return namer.GetDefinitionName(openapi.DocumentedName(definition))
	}
	v2 := genericapiserver.DefaultOpenAPIConfig(openapi.Definitions, namer)
	v2.Info.Title, v2.Info.Version = "Pinniped Concierge", apis.Version
	v2.GetDefinitionName = name
	v3 := genericapiserver.DefaultOpenAPIV3Config(openapi.Definitions, namer)
	v3.Info.Title, v3.Info.Version = v2.Info.Title, v2.Info.Version
	v3.GetDefinitionName = name
	v3.Definitions = openapi.Definitions(func(definition string) spec.Ref {
		documented, _ := name(definition)
		return spec.MustCreateRef("#/components/schemas/" + openapicommon.EscapeJsonPointer(documented))
	})
	config.OpenAPIConfig, config.OpenAPIV3Config = v2, v3
}

func install(
	server *genericapiserver.GenericAPIServer,
	scheme *runtime.Scheme,
	codecs serializer.CodecFactory,
	groups apis.Groups,
	credentials *credentialRequests,
) error {
	parameters := runtime.NewParameterCodec(scheme)
	login := genericapiserver.NewDefaultAPIGroupInfo(groups.Login.Group, scheme, parameters, codecs)
	login.VersionedResourcesStorageMap[groups.Login.Version] = map[string]registry.Storage{
		"tokencredentialrequests": credentials,
	}
	identity := genericapiserver.NewDefaultAPIGroupInfo(groups.Identity.Group, scheme, parameters, codecs)
	identity.VersionedResourcesStorageMap[groups.Identity.Version] = map[string]registry.Storage{
		"whoamirequests": newWhoAmIRequests(),
	}
	if err := server.InstallAPIGroups(&login, &identity); err != nil {
		return fmt.Errorf("installing the aggregated APIs: %w", err)
	}
	return nil
}

// withoutManagedFields drops the managed fields: they are not used here, and are often larger than the object.
func withoutManagedFields(item any) (any, error) {
	if object, err := meta.Accessor(item); err == nil {
		object.SetManagedFields(nil)
	}
	return item, nil
}
