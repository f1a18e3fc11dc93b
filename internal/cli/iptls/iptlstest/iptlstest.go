// Package iptlstest is what tests of `pinniped ip-tls` run against: a cluster in memory with an agent that obeys, and
// a proxy on loopback that presents real certificates.
package iptlstest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result/resulttest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Cluster keeps one CredentialIssuer, one Secret and some Services, with resource versions as an API server has.
type Cluster struct {
	Mu        sync.Mutex
	Issuer    *configv1alpha1.CredentialIssuer
	TLSSecret *corev1.Secret
	CASecret  *corev1.Secret // of the generated CA; may be nil
	Others    map[string]*corev1.Secret
	services  map[string]*corev1.Service
	version   int

	Applied []map[string]any // that were stored
	Options []discovery.ApplyOptions
	// BeforeApply and AfterApply are called around a change: an agent reacts in AfterApply, somebody else interferes
	// in BeforeApply. They may change the objects.
	BeforeApply, AfterApply func(*Cluster)
	afterRead               func(*Cluster)
	NamespaceErr, ApplyErr  error
	CASecretErr             error
	secretErr               error // of writing a Secret
	CertManager             *discovery.Certificate
	CertificatesErr         error // of listing them
	// AfterLook is called after each list of the Certificates, as cert-manager works meanwhile.
	AfterLook func(*Cluster)
	ReadErr   error    // of reading the Secret
	owned     []string // keys of the Secret that we have applied

	// What is permitted about Secrets of other namespaces, and who was asked about, and which Secrets were read.
	Delegated                  []delegation.Delegation
	MayRead                    bool
	DelegationsErr, MayReadErr error
	Reviewed, SecretsRead      []string
	Grants                     map[string]map[string]any
	GrantErr                   error
	// User is the name of the user who runs the commands; empty means that the cluster does not tell.
	User string
	// Leases are those of the agent's replicas; nil means that one has just renewed its own.
	Leases    []discovery.ReplicaLease
	LeasesErr error
	// Fields are those of spec.impersonationProxy.tls; nil means that the API does not tell.
	Fields []string
	// BeforeSecret and AfterSecret are like BeforeApply and AfterApply, for changes of the Secret.
	BeforeSecret, AfterSecret func(*Cluster)
}

// PutService makes a Service, or replaces it.
func (c *Cluster) PutService(service *corev1.Service) { c.services[service.Name] = service }

// BumpSecret gives the Secret a new resource version, as every change does.
func (c *Cluster) BumpSecret() {
	c.version++
	c.TLSSecret.ResourceVersion = strconv.Itoa(c.version)
}

// ApplySecret is a server-side apply of the Secret, which notices conflicts.
func (c *Cluster) ApplySecret(_ context.Context, namespace, name string, object any,
	opts discovery.ApplyOptions,
) (*corev1.Secret, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.secretErr != nil {
		return nil, c.secretErr
	}
	if c.BeforeSecret != nil {
		c.BeforeSecret(c)
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var wanted corev1.Secret
	if err := json.Unmarshal(encoded, &wanted); err != nil {
		return nil, err
	}
	exists := c.TLSSecret != nil && c.TLSSecret.Name == name
	switch version := wanted.ResourceVersion; {
	case exists && version == "" && !opts.Force, exists && version != "" && version != c.TLSSecret.ResourceVersion,
		!exists && version != "":
		return nil, fmt.Errorf("the Secret has been modified: %w", discovery.ErrConflict)
	case exists && wanted.Type != c.TLSSecret.Type:
		return nil, errors.New("the type of a Secret never changes")
	}
	result := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "made"},
		Type:       wanted.Type, Data: map[string][]byte{},
	}
	if exists {
		result = c.TLSSecret.DeepCopy()
	}
	for _, key := range c.owned {
		delete(result.Data, key)
	}
	maps.Copy(result.Data, wanted.Data)
	if opts.DryRun {
		return result, nil
	}
	c.TLSSecret, c.owned = result, slices.Collect(maps.Keys(wanted.Data))
	c.BumpSecret()
	if c.AfterSecret != nil {
		c.AfterSecret(c)
	}
	return c.TLSSecret.DeepCopy(), nil
}

// Certificate returns the Certificate of cert-manager, if there is one.
func (c *Cluster) Certificate(_ context.Context, _, name string) (*discovery.Certificate, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.CertManager == nil {
		return nil, fmt.Errorf("reading certificates %q: %w", name, discovery.ErrNotFound)
	}
	return c.CertManager, nil
}

// Certificates returns the Certificate of cert-manager, if there is one.
func (c *Cluster) Certificates(context.Context, string) ([]discovery.Certificate, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.CertificatesErr != nil {
		return nil, c.CertificatesErr
	}
	if c.CertManager == nil {
		return nil, fmt.Errorf("listing certificates: %w", discovery.ErrNotFound)
	}
	found := *c.CertManager
	if c.AfterLook != nil {
		c.AfterLook(c)
	}
	return []discovery.Certificate{found}, nil
}

// DeleteSecret deletes the Secret, unless it has changed.
func (c *Cluster) DeleteSecret(_ context.Context, secret *corev1.Secret) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.TLSSecret == nil || c.TLSSecret.ResourceVersion != secret.ResourceVersion || c.TLSSecret.UID != secret.UID {
		return discovery.ErrConflict
	}
	c.TLSSecret, c.owned = nil, nil
	return nil
}

// Bump gives the CredentialIssuer a new resource version, as every change does.
func (c *Cluster) Bump() {
	c.version++
	c.Issuer.ResourceVersion = strconv.Itoa(c.version)
}

// CredentialIssuer returns a copy of the only CredentialIssuer, whatever name was asked for.
func (c *Cluster) CredentialIssuer(_ context.Context, _ string) (*configv1alpha1.CredentialIssuer, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Issuer == nil {
		return nil, discovery.ErrNoCredentialIssuer
	}
	found := c.Issuer.DeepCopy()
	if c.afterRead != nil {
		c.afterRead(c)
	}
	return found, nil
}

// ApplyCredentialIssuer stores the fields, unless the resource version is an old one.
func (c *Cluster) ApplyCredentialIssuer(_ context.Context, _ string, object any,
	opts discovery.ApplyOptions,
) (*configv1alpha1.CredentialIssuer, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Options = append(c.Options, opts)
	if c.ApplyErr != nil {
		return nil, c.ApplyErr
	}
	if c.BeforeApply != nil {
		c.BeforeApply(c)
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields struct {
		Metadata struct {
			ResourceVersion string
			Annotations     map[string]string
		}
		Spec configv1alpha1.CredentialIssuerSpec
	}
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return nil, err
	}
	if fields.Metadata.ResourceVersion != c.Issuer.ResourceVersion {
		return nil, fmt.Errorf("the object has been modified: %w", discovery.ErrConflict)
	}
	if opts.DryRun {
		return c.Issuer.DeepCopy(), nil
	}
	c.Applied = append(c.Applied, plain(object))
	spec, want := c.Issuer.Spec.ImpersonationProxy, fields.Spec.ImpersonationProxy
	spec.TLS, spec.ExternalEndpoint = want.TLS, OrElse(want.ExternalEndpoint, spec.ExternalEndpoint)
	if want.Mode != "" {
		spec.Mode = want.Mode
	}
	spec.Service.LoadBalancerIP = OrElse(want.Service.LoadBalancerIP, spec.Service.LoadBalancerIP)
	for key, value := range fields.Metadata.Annotations {
		metav1.SetMetaDataAnnotation(&c.Issuer.ObjectMeta, key, value)
	}
	c.Bump()
	if c.AfterApply != nil {
		c.AfterApply(c)
	}
	return c.Issuer.DeepCopy(), nil
}

// annotate stores a merge patch of the annotations alone: nothing that an agent reacts to.
func (c *Cluster) annotate(fields map[string]any) (*configv1alpha1.CredentialIssuer, error) {
	if fields["metadata"].(map[string]any)["resourceVersion"] != c.Issuer.ResourceVersion {
		return nil, fmt.Errorf("the object has been modified: %w", discovery.ErrConflict)
	}
	annotations, _ := fields["metadata"].(map[string]any)["annotations"].(map[string]any)
	for key, value := range annotations {
		if text, isText := value.(string); isText {
			metav1.SetMetaDataAnnotation(&c.Issuer.ObjectMeta, key, text)
		} else {
			delete(c.Issuer.Annotations, key)
		}
	}
	c.Bump()
	return c.Issuer.DeepCopy(), nil
}

// MergeCredentialIssuer stores a merge patch, unless the resource version is an old one.
func (c *Cluster) MergeCredentialIssuer(_ context.Context, _ string, patch any,
	opts discovery.ApplyOptions,
) (*configv1alpha1.CredentialIssuer, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	fields := plain(patch)
	if _, changes := fields["spec"]; !changes && !opts.DryRun {
		return c.annotate(fields)
	}
	c.Options = append(c.Options, opts)
	if c.ApplyErr != nil {
		return nil, c.ApplyErr
	}
	if c.BeforeApply != nil {
		c.BeforeApply(c)
	}
	if fields["metadata"].(map[string]any)["resourceVersion"] != c.Issuer.ResourceVersion {
		return nil, fmt.Errorf("the object has been modified: %w", discovery.ErrConflict)
	}
	if opts.DryRun {
		return c.Issuer.DeepCopy(), nil
	}
	c.Applied = append(c.Applied, fields)
	object := plain(c.Issuer)
	merge(object, fields)
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	c.Issuer = &configv1alpha1.CredentialIssuer{}
	if err := json.Unmarshal(encoded, c.Issuer); err != nil {
		return nil, err
	}
	c.Bump()
	if c.AfterApply != nil {
		c.AfterApply(c)
	}
	return c.Issuer.DeepCopy(), nil
}

// plain returns an object as JSON has it.
func plain(object any) map[string]any {
	encoded, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(encoded, &fields); err != nil {
		panic(err)
	}
	return fields
}

// merge is a JSON merge patch.
func merge(object, patch map[string]any) {
	for key, value := range patch {
		into, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(object, key)
		case isObject:
			inner, there := object[key].(map[string]any)
			if !there {
				inner = map[string]any{}
			}
			merge(inner, into)
			object[key] = inner
		default:
			object[key] = value
		}
	}
}

// OrElse returns a, or b when a is empty.
func OrElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Secret returns a copy of the Secret of this name, and notes that it was read.
func (c *Cluster) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.SecretsRead = append(c.SecretsRead, namespace+"/"+name)
	if name == "pinniped-concierge-impersonation-proxy-ca-certificate" && (c.CASecret != nil || c.CASecretErr != nil) {
		return c.CASecret.DeepCopy(), c.CASecretErr
	}
	if other, ok := c.Others[name]; ok {
		return other.DeepCopy(), nil
	}
	if c.ReadErr != nil {
		return nil, c.ReadErr
	}
	if c.TLSSecret == nil || c.TLSSecret.Name != name {
		return nil, fmt.Errorf("reading secrets %q: %w", name, discovery.ErrNotFound)
	}
	return c.TLSSecret.DeepCopy(), nil
}

// Service returns a copy of the Service of this name.
func (c *Cluster) Service(_ context.Context, _, name string) (*corev1.Service, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if service, ok := c.services[name]; ok {
		return service.DeepCopy(), nil
	}
	return nil, discovery.ErrNotFound
}

// Delegations returns those of a namespace, or all.
func (c *Cluster) Delegations(_ context.Context, namespace string) ([]delegation.Delegation, error) {
	if c.DelegationsErr != nil {
		return nil, c.DelegationsErr
	}
	var found []delegation.Delegation
	for _, one := range c.Delegated {
		if namespace == "" || one.Namespace == namespace {
			found = append(found, one)
		}
	}
	return found, nil
}

// MayReadSecret answers as the field MayRead says, and notes the question.
func (c *Cluster) MayReadSecret(_ context.Context, account, secret types.NamespacedName) (bool, error) {
	c.Reviewed = append(c.Reviewed, account.String()+" "+secret.String())
	return c.MayRead, c.MayReadErr
}

// Allowed permits everything.
func (c *Cluster) Allowed(context.Context, authorizationv1.ResourceAttributes) (bool, error) {
	return true, nil
}

func grantKey(object map[string]any) string {
	metadata := object["metadata"].(map[string]any)
	return fmt.Sprintf("%v %v/%v", object["kind"], metadata["namespace"], metadata["name"])
}

// sameGrant compares what is stored with what is applied, as server-side apply does before it writes.
func sameGrant(stored, applied map[string]any) bool {
	bare := maps.Clone(stored)
	metadata := maps.Clone(stored["metadata"].(map[string]any))
	delete(metadata, "resourceVersion")
	bare["metadata"] = metadata
	return reflect.DeepEqual(bare, applied)
}

// ApplyGrant stores an object of a delegation.
func (c *Cluster) ApplyGrant(_ context.Context, object map[string]any, opts discovery.ApplyOptions) error {
	c.Options = append(c.Options, opts)
	if c.Grants == nil {
		c.Grants = map[string]map[string]any{}
	}
	if before, ok := c.Grants[grantKey(object)]; !opts.DryRun && (!ok || !sameGrant(before, object)) {
		stored := maps.Clone(object)
		metadata := maps.Clone(object["metadata"].(map[string]any))
		metadata["resourceVersion"] = strconv.Itoa(len(c.Options)) // a new one with each change
		stored["metadata"] = metadata
		c.Grants[grantKey(object)] = stored
	}
	return c.GrantErr
}

// Grant returns a stored object of a delegation.
func (c *Cluster) Grant(_ context.Context, object map[string]any) (map[string]any, error) {
	if found, ok := c.Grants[grantKey(object)]; ok {
		return found, nil
	}
	return nil, discovery.ErrNotFound
}

// DeleteGrant removes an object of a delegation.
func (c *Cluster) DeleteGrant(_ context.Context, found map[string]any, dryRun bool) error {
	if !dryRun {
		delete(c.Grants, grantKey(found))
	}
	return c.GrantErr
}

// Username returns the field User.
func (c *Cluster) Username(context.Context) (string, error) {
	if c.User == "" {
		return "", discovery.ErrNotFound
	}
	return c.User, nil
}

// ReplicaLeases returns the field Leases.
func (c *Cluster) ReplicaLeases(context.Context, string) ([]discovery.ReplicaLease, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Leases == nil {
		return []discovery.ReplicaLease{{Renewed: time.Now(), Lasts: 40 * time.Second}}, c.LeasesErr
	}
	return c.Leases, c.LeasesErr
}

// TLSFields returns the field Fields.
func (c *Cluster) TLSFields(context.Context) ([]string, error) {
	if c.Fields == nil {
		return nil, discovery.ErrNotFound
	}
	return c.Fields, nil
}

// AgentNamespace returns the default namespace of the agent.
func (c *Cluster) AgentNamespace(context.Context) (string, error) {
	return "pinniped-concierge", c.NamespaceErr
}

// Report makes the agent's status say success with this bundle.
func (c *Cluster) Report(url string, bundle []byte) {
	c.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{ProxyReport(url, bundle)}
	c.Bump()
}

// ProxyReport is the strategy of a proxy that works.
func ProxyReport(url string, bundle []byte) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyImpersonationProxy, Status: configv1alpha1.StrategySuccess,
		Reason: configv1alpha1.ReasonListening, Message: "impersonation proxy is ready to accept client connections",
		Frontend: &configv1alpha1.CredentialIssuerFrontend{
			Type: configv1alpha1.FrontendImpersonationProxy,
			ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{
				Endpoint: url, CertificateAuthorityData: base64.StdEncoding.EncodeToString(bundle),
			},
		},
	}
}

// FailedReport is the strategy of a proxy that does not.
func FailedReport(reason configv1alpha1.StrategyReason, message string) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyImpersonationProxy, Status: configv1alpha1.StrategyError, Reason: reason,
		Message: message,
	}
}

// Proxy is a TLS server on loopback whose certificate can be changed, as the impersonation proxy's.
type Proxy struct {
	certificate atomic.Pointer[tls.Certificate]
	Port        int
}

// Serve makes the proxy present another certificate.
func (p *Proxy) Serve(t *testing.T, pair *certs.KeyPair) {
	t.Helper()
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	p.certificate.Store(&certificate)
}

// StartProxy starts a proxy with this certificate, until the end of the test.
func StartProxy(t *testing.T, pair *certs.KeyPair) *Proxy {
	t.Helper()
	p := &Proxy{}
	p.Serve(t, pair)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	p.Port = listener.Addr().(*net.TCPAddr).Port
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.certificate.Load(), nil },
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = tls.Server(conn, config).HandshakeContext(context.Background())
				_ = conn.Close()
			}()
		}
	}()
	return p
}

// Endpoint is host and port.
func (p *Proxy) Endpoint() string { return "127.0.0.1:" + strconv.Itoa(p.Port) }

// URL is the address as the status has it.
func (p *Proxy) URL() string { return "https://" + p.Endpoint() }

// World is a cluster with a generated certificate in service, and a Secret with an external one.
type World struct {
	Cluster   *Cluster
	Proxy     *Proxy
	Generated *certs.CA
	CA        *certs.CA
	Pair      *certs.KeyPair
}

// NewCA makes a CA.
func NewCA(t *testing.T, name string) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(name, time.Now(), 10*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// Serving issues a serving certificate.
func Serving(t *testing.T, ca *certs.CA, names certs.SANs) *certs.KeyPair {
	t.Helper()
	pair, err := ca.IssueServing(names, time.Now(), 90*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// Loopback are the names of a certificate for the proxy.
func Loopback() certs.SANs {
	return certs.SANs{DNSNames: []string{"proxy.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1).To4()}}
}

// TooShort is a --timeout for what will never come true. It is long enough for all that comes before, on a busy
// machine.
const TooShort = 2 * time.Second

// New returns a world in which the agent has reported its generated certificate, and does not react to changes.
func New(t *testing.T) *World {
	t.Helper()
	w := &World{Generated: NewCA(t, "Pinniped Impersonation Proxy Serving CA"), CA: NewCA(t, "Company CA")}
	w.Proxy = StartProxy(t, Serving(t, w.Generated, Loopback()))
	w.Pair = Serving(t, w.CA, Loopback())
	w.Cluster = &Cluster{
		Issuer: &configv1alpha1.CredentialIssuer{
			ObjectMeta: metav1.ObjectMeta{Name: "pinniped-concierge-config"},
			Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{
				Mode:             configv1alpha1.ImpersonationProxyModeEnabled,
				Service:          configv1alpha1.ImpersonationProxyServiceSpec{Type: configv1alpha1.ServiceTypeNone},
				ExternalEndpoint: w.Proxy.Endpoint(),
			}},
		},
		TLSSecret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "proxy-tls", Namespace: "pinniped-concierge", ResourceVersion: "1"},
			Type:       corev1.SecretTypeTLS,
			Data: map[string][]byte{
				"tls.crt": w.Pair.CertPEM, "tls.key": w.Pair.KeyPEM,
				"ca.crt": w.CA.CertPEM(),
			},
		},
		services: map[string]*corev1.Service{},
	}
	key, err := w.Generated.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	w.Cluster.CASecret = &corev1.Secret{Data: map[string][]byte{"ca.crt": w.Generated.CertPEM(), "ca.key": key}}
	w.Cluster.Report(w.Proxy.URL(), w.Generated.CertPEM())
	return w
}

// Obey simulates the agent: after each change of the CredentialIssuer, the proxy presents the configured certificate
// and the status reports its CA bundle.
func (w *World) Obey(t *testing.T) {
	t.Helper()
	w.Cluster.AfterApply = func(c *Cluster) {
		spec := c.Issuer.Spec.ImpersonationProxy
		if spec.TLS == nil {
			w.Proxy.Serve(t, Serving(t, w.Generated, Loopback()))
			c.Report(w.Proxy.URL(), w.Generated.CertPEM())
			return
		}
		secret := c.TLSSecret
		if other, ok := c.Others[spec.TLS.SecretName[strings.LastIndex(spec.TLS.SecretName, "/")+1:]]; ok {
			secret = other
		}
		w.Proxy.Serve(t, &certs.KeyPair{CertPEM: secret.Data["tls.crt"], KeyPEM: secret.Data["tls.key"]})
		bundle := secret.Data["ca.crt"]
		if data := spec.TLS.CertificateAuthorityData; data != "" {
			var err error
			if bundle, err = base64.StdEncoding.DecodeString(data); err != nil {
				t.Error(err)
			}
		}
		c.Report(w.Proxy.URL(), bundle)
	}
}

// Judge simulates an agent that also judges, with the code of the real one: what it refuses is not served, and the
// status tells the findings.
func (w *World) Judge(t *testing.T) {
	t.Helper()
	w.Obey(t)
	obey := w.Cluster.AfterApply
	w.Cluster.AfterApply = func(c *Cluster) {
		spec := c.Issuer.Spec.ImpersonationProxy
		c.Issuer.Generation++
		defer func() { c.Issuer.Status.ObservedGeneration = c.Issuer.Generation }()
		if spec.TLS == nil {
			obey(c)
			return
		}
		name := types.NamespacedName{Namespace: "pinniped-concierge", Name: spec.TLS.SecretName}
		judged := servingcert.External(servingcert.ExternalInput{
			Name: name, Secret: c.TLSSecret, Spec: *spec.TLS, Endpoint: spec.ExternalEndpoint, Now: time.Now(),
		})
		if judged.Refusal == nil {
			obey(c)
			return
		}
		failed := FailedReport(configv1alpha1.ReasonErrorDuringSetup, judged.Refusal.Error())
		failed.Findings = []configv1alpha1.StrategyFinding{{
			Code: string(judged.Refusal.Finding.Code), Severity: configv1alpha1.FindingError, Message: "refused",
		}}
		c.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{failed}
		c.Bump()
	}
}

// Put adds a Secret with a pair and, unless it is empty, a CA bundle.
func (w *World) Put(name string, pair *certs.KeyPair, bundle []byte) {
	if w.Cluster.Others == nil {
		w.Cluster.Others = map[string]*corev1.Secret{}
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "pinniped-concierge", ResourceVersion: "7"},
		Type:       corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM},
	}
	if len(bundle) > 0 {
		secret.Data["ca.crt"] = bundle
	}
	w.Cluster.Others[name] = secret
}

// WithoutRecords returns what was stored, without our records in annotations, which hold times.
func (c *Cluster) WithoutRecords() []map[string]any {
	var stored []map[string]any
	for _, object := range c.Applied {
		copied := plain(object)
		delete(copied["metadata"].(map[string]any), "annotations")
		stored = append(stored, copied)
	}
	return stored
}

// Run is one run of the command in a world.
type Run struct {
	Out, ErrOut bytes.Buffer
	Err         error
}

// Given is the Changed of a command line with these flags.
func Given(flags ...string) func(string) bool {
	return func(flag string) bool { return slices.Contains(flags, flag) }
}

// Do runs a command as the command line does.
func (r *Run) Do(ctx context.Context, o factory.Command) *Run {
	r.Err = factory.Execute(ctx, o)
	return r
}

// Network resolves names and presents certificates from memory, without connections.
type Network struct {
	Addresses []netip.Addr
	Chains    map[string][]*x509.Certificate
	Errs      map[string]error
}

// Resolve returns the addresses.
func (n Network) Resolve(context.Context, string) ([]netip.Addr, error) { return n.Addresses, nil }

// Presented returns the chain, or the error, of an address.
func (n Network) Presented(_ context.Context, at, _ string) ([]*x509.Certificate, error) {
	return n.Chains[at], n.Errs[at]
}

// Check compares the exit code, and looks for the parts in all that was printed, the error and its hint.
// Output for programs must be as the schema has it.
func (r *Run) Check(t *testing.T, code int, parts ...string) {
	t.Helper()
	if out := r.Out.String(); strings.HasPrefix(out, "{") || strings.HasPrefix(out, "apiVersion: cli.") {
		resulttest.Valid(t, r.Out.Bytes())
	}
	if got := ui.ExitCodeOf(r.Err); got != code {
		t.Errorf("exit code %d (%v), want %d", got, r.Err, code)
	}
	all := r.ErrOut.String() + r.Out.String()
	if r.Err != nil {
		all += r.Err.Error() + "\n" + ui.HintOf(r.Err)
	}
	for _, part := range parts {
		if !strings.Contains(all, part) {
			t.Errorf("nothing says %q", part)
		}
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s\nerror: %v\nhint: %s", r.Out.String(), r.ErrOut.String(), r.Err,
			ui.HintOf(r.Err))
	}
}

// Lacks looks whether a part is in nothing that was printed.
func (r *Run) Lacks(t *testing.T, part string) {
	t.Helper()
	all := r.ErrOut.String() + r.Out.String()
	if r.Err != nil {
		all += r.Err.Error() + "\n" + ui.HintOf(r.Err)
	}
	if strings.Contains(all, part) {
		t.Errorf("something says %q:\n%s", part, all)
	}
}

// Served makes the agent follow the Secret as well.
func (w *World) Served(t *testing.T) {
	t.Helper()
	w.Obey(t)
	w.Cluster.AfterSecret = w.Cluster.AfterApply
}

// SecretHas looks whether the Secret holds this pair.
func (w *World) SecretHas(t *testing.T, pair *certs.KeyPair) {
	t.Helper()
	if w.Cluster.TLSSecret == nil {
		t.Error("there is no Secret")
		return
	}
	want := map[string]string{"tls.crt": string(pair.CertPEM), "tls.key": string(pair.KeyPEM)}
	got := map[string]string{}
	for _, key := range []string{"tls.crt", "tls.key"} {
		got[key] = string(w.Cluster.TLSSecret.Data[key])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the Secret (-want +got):\n%s", diff)
	}
}

// NewExternalWorld is a cluster in which an external certificate is in service.
func NewExternalWorld(t *testing.T) *World {
	t.Helper()
	w := New(t)
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "proxy-tls"}
	w.Proxy.Serve(t, w.Pair)
	w.Cluster.Report(w.Proxy.URL(), w.CA.CertPEM())
	return w
}

// Share permits the agent to use a Secret of namespace shared.
func (w *World) Share(secretName string, targets ...string) {
	w.Cluster.MayRead = true
	w.Cluster.Delegated = append(w.Cluster.Delegated, delegation.Delegation{
		Namespace: "shared", Name: "d", Entries: []delegation.Entry{{SecretName: secretName, Targets: targets}},
	})
}

// HasRead says whether a Secret was read.
func (w *World) HasRead(name string) bool {
	for _, read := range w.Cluster.SecretsRead {
		if read == name {
			return true
		}
	}
	return false
}
