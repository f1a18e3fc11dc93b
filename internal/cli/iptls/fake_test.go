package iptls

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// fakeCluster keeps one CredentialIssuer, one Secret and some Services, with resource versions as an API server has.
type fakeCluster struct {
	mu       sync.Mutex
	issuer   *configv1alpha1.CredentialIssuer
	secret   *corev1.Secret
	caSecret *corev1.Secret // of the generated CA; may be nil
	others   map[string]*corev1.Secret
	services map[string]*corev1.Service
	version  int

	applied []map[string]any // that were stored
	options []discovery.ApplyOptions
	// react is what an agent does after a change, or somebody else before one; they may change the cluster's objects.
	beforeApply, afterApply func(*fakeCluster)
	afterRead               func(*fakeCluster)
	namespaceErr, applyErr  error
	caSecretErr             error
	secretErr               error // of writing a Secret
	certificate             *discovery.Certificate
	readErr                 error    // of reading the Secret
	owned                   []string // keys of the Secret that we have applied

	// What is permitted about Secrets of other namespaces, and who was asked about, and which Secrets were read.
	delegations                []delegation.Delegation
	mayRead                    bool
	delegationsErr, mayReadErr error
	reviewed, secretsRead      []string
	grants                     map[string]map[string]any
	grantErr                   error
	// beforeSecret and afterSecret are as beforeApply and afterApply, for the Secret.
	beforeSecret, afterSecret func(*fakeCluster)
}

// bumpSecret gives the Secret a new resource version, as every change does.
func (c *fakeCluster) bumpSecret() {
	c.version++
	c.secret.ResourceVersion = strconv.Itoa(c.version)
}

func (c *fakeCluster) ApplySecret(_ context.Context, namespace, name string, object any, opts discovery.ApplyOptions) (*corev1.Secret, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.secretErr != nil {
		return nil, c.secretErr
	}
	if c.beforeSecret != nil {
		c.beforeSecret(c)
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var wanted corev1.Secret
	if err := json.Unmarshal(encoded, &wanted); err != nil {
		return nil, err
	}
	exists := c.secret != nil && c.secret.Name == name
	switch version := wanted.ResourceVersion; {
	case exists && version == "" && !opts.Force, exists && version != "" && version != c.secret.ResourceVersion, !exists && version != "":
		return nil, fmt.Errorf("the Secret has been modified: %w", discovery.ErrConflict)
	case exists && wanted.Type != c.secret.Type:
		return nil, errors.New("the type of a Secret never changes")
	}
	result := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "made"}, Type: wanted.Type, Data: map[string][]byte{}}
	if exists {
		result = c.secret.DeepCopy()
	}
	for _, key := range c.owned {
		delete(result.Data, key)
	}
	maps.Copy(result.Data, wanted.Data)
	if opts.DryRun {
		return result, nil
	}
	c.secret, c.owned = result, slices.Collect(maps.Keys(wanted.Data))
	c.bumpSecret()
	if c.afterSecret != nil {
		c.afterSecret(c)
	}
	return c.secret.DeepCopy(), nil
}

func (c *fakeCluster) Certificate(_ context.Context, _, name string) (*discovery.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.certificate == nil {
		return nil, fmt.Errorf("reading certificates %q: %w", name, discovery.ErrNotFound)
	}
	return c.certificate, nil
}

func (c *fakeCluster) DeleteSecret(_ context.Context, secret *corev1.Secret) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.secret == nil || c.secret.ResourceVersion != secret.ResourceVersion || c.secret.UID != secret.UID {
		return discovery.ErrConflict
	}
	c.secret, c.owned = nil, nil
	return nil
}

func (c *fakeCluster) bump() {
	c.version++
	c.issuer.ResourceVersion = strconv.Itoa(c.version)
}

func (c *fakeCluster) CredentialIssuer(_ context.Context, _ string) (*configv1alpha1.CredentialIssuer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.issuer == nil {
		return nil, discovery.ErrNoCredentialIssuer
	}
	found := c.issuer.DeepCopy()
	if c.afterRead != nil {
		c.afterRead(c)
	}
	return found, nil
}

func (c *fakeCluster) ApplyCredentialIssuer(_ context.Context, _ string, object any, opts discovery.ApplyOptions) (*configv1alpha1.CredentialIssuer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options = append(c.options, opts)
	if c.applyErr != nil {
		return nil, c.applyErr
	}
	if c.beforeApply != nil {
		c.beforeApply(c)
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
	if fields.Metadata.ResourceVersion != c.issuer.ResourceVersion {
		return nil, fmt.Errorf("the object has been modified: %w", discovery.ErrConflict)
	}
	if opts.DryRun {
		return c.issuer.DeepCopy(), nil
	}
	c.applied = append(c.applied, plain(object))
	spec, want := c.issuer.Spec.ImpersonationProxy, fields.Spec.ImpersonationProxy
	spec.TLS, spec.ExternalEndpoint = want.TLS, orElse(want.ExternalEndpoint, spec.ExternalEndpoint)
	spec.Service.LoadBalancerIP = orElse(want.Service.LoadBalancerIP, spec.Service.LoadBalancerIP)
	for key, value := range fields.Metadata.Annotations {
		metav1.SetMetaDataAnnotation(&c.issuer.ObjectMeta, key, value)
	}
	c.bump()
	if c.afterApply != nil {
		c.afterApply(c)
	}
	return c.issuer.DeepCopy(), nil
}

func (c *fakeCluster) MergeCredentialIssuer(_ context.Context, _ string, patch any, opts discovery.ApplyOptions) (*configv1alpha1.CredentialIssuer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options = append(c.options, opts)
	if c.applyErr != nil {
		return nil, c.applyErr
	}
	if c.beforeApply != nil {
		c.beforeApply(c)
	}
	fields := plain(patch)
	if fields["metadata"].(map[string]any)["resourceVersion"] != c.issuer.ResourceVersion {
		return nil, fmt.Errorf("the object has been modified: %w", discovery.ErrConflict)
	}
	if opts.DryRun {
		return c.issuer.DeepCopy(), nil
	}
	c.applied = append(c.applied, fields)
	object := plain(c.issuer)
	merge(object, fields)
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	c.issuer = &configv1alpha1.CredentialIssuer{}
	if err := json.Unmarshal(encoded, c.issuer); err != nil {
		return nil, err
	}
	c.bump()
	if c.afterApply != nil {
		c.afterApply(c)
	}
	return c.issuer.DeepCopy(), nil
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

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (c *fakeCluster) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.secretsRead = append(c.secretsRead, namespace+"/"+name)
	if name == "pinniped-concierge-impersonation-proxy-ca-certificate" && (c.caSecret != nil || c.caSecretErr != nil) {
		return c.caSecret.DeepCopy(), c.caSecretErr
	}
	if other, ok := c.others[name]; ok {
		return other.DeepCopy(), nil
	}
	if c.readErr != nil {
		return nil, c.readErr
	}
	if c.secret == nil || c.secret.Name != name {
		return nil, fmt.Errorf("reading secrets %q: %w", name, discovery.ErrNotFound)
	}
	return c.secret.DeepCopy(), nil
}

func (c *fakeCluster) Service(_ context.Context, _, name string) (*corev1.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if service, ok := c.services[name]; ok {
		return service.DeepCopy(), nil
	}
	return nil, discovery.ErrNotFound
}

func (c *fakeCluster) Delegations(_ context.Context, namespace string) ([]delegation.Delegation, error) {
	if c.delegationsErr != nil {
		return nil, c.delegationsErr
	}
	var found []delegation.Delegation
	for _, one := range c.delegations {
		if namespace == "" || one.Namespace == namespace {
			found = append(found, one)
		}
	}
	return found, nil
}

func (c *fakeCluster) MayReadSecret(_ context.Context, account, secret types.NamespacedName) (bool, error) {
	c.reviewed = append(c.reviewed, account.String()+" "+secret.String())
	return c.mayRead, c.mayReadErr
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

func (c *fakeCluster) ApplyGrant(_ context.Context, object map[string]any, opts discovery.ApplyOptions) error {
	c.options = append(c.options, opts)
	if c.grants == nil {
		c.grants = map[string]map[string]any{}
	}
	if before, ok := c.grants[grantKey(object)]; !opts.DryRun && (!ok || !sameGrant(before, object)) {
		stored := maps.Clone(object)
		metadata := maps.Clone(object["metadata"].(map[string]any))
		metadata["resourceVersion"] = strconv.Itoa(len(c.options)) // a new one with each change
		stored["metadata"] = metadata
		c.grants[grantKey(object)] = stored
	}
	return c.grantErr
}

func (c *fakeCluster) Grant(_ context.Context, object map[string]any) (map[string]any, error) {
	if found, ok := c.grants[grantKey(object)]; ok {
		return found, nil
	}
	return nil, discovery.ErrNotFound
}

func (c *fakeCluster) DeleteGrant(_ context.Context, found map[string]any, dryRun bool) error {
	if !dryRun {
		delete(c.grants, grantKey(found))
	}
	return c.grantErr
}

func (c *fakeCluster) AgentNamespace(context.Context) (string, error) {
	return "pinniped-concierge", c.namespaceErr
}

// report makes the agent's status say success with this bundle.
func (c *fakeCluster) report(url string, bundle []byte) {
	c.issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{proxyReport(url, bundle)}
	c.bump()
}

func proxyReport(url string, bundle []byte) configv1alpha1.CredentialIssuerStrategy {
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

func failedReport(reason configv1alpha1.StrategyReason, message string) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyImpersonationProxy, Status: configv1alpha1.StrategyError, Reason: reason, Message: message,
	}
}

// proxy is a TLS server on loopback whose certificate can be changed, as the impersonation proxy's.
type proxy struct {
	certificate atomic.Pointer[tls.Certificate]
	port        int
}

func (p *proxy) serve(t *testing.T, pair *certs.KeyPair) {
	t.Helper()
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	p.certificate.Store(&certificate)
}

func startProxy(t *testing.T, pair *certs.KeyPair) *proxy {
	t.Helper()
	p := &proxy{}
	p.serve(t, pair)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	p.port = listener.Addr().(*net.TCPAddr).Port
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
				_ = tls.Server(conn, config).Handshake()
				_ = conn.Close()
			}()
		}
	}()
	return p
}

func (p *proxy) endpoint() string { return "127.0.0.1:" + strconv.Itoa(p.port) }
func (p *proxy) url() string      { return "https://" + p.endpoint() }

// world is a cluster with a generated certificate in service, and a Secret with an external one.
type world struct {
	cluster   *fakeCluster
	proxy     *proxy
	generated *certs.CA
	ca        *certs.CA
	pair      *certs.KeyPair
}

func newCA(t *testing.T, name string) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(name, time.Now(), 10*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func serving(t *testing.T, ca *certs.CA, names certs.SANs) *certs.KeyPair {
	t.Helper()
	pair, err := ca.IssueServing(names, time.Now(), 90*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func loopback() certs.SANs {
	return certs.SANs{DNSNames: []string{"proxy.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1).To4()}}
}

// tooShort is a --timeout for what will never come true. It is long enough for all that comes before, on a busy machine.
const tooShort = 2 * time.Second

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{generated: newCA(t, generatedCAName), ca: newCA(t, "Company CA")}
	w.proxy = startProxy(t, serving(t, w.generated, loopback()))
	w.pair = serving(t, w.ca, loopback())
	w.cluster = &fakeCluster{
		issuer: &configv1alpha1.CredentialIssuer{
			ObjectMeta: metav1.ObjectMeta{Name: "pinniped-concierge-config"},
			Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{
				Mode: configv1alpha1.ImpersonationProxyModeEnabled, Service: configv1alpha1.ImpersonationProxyServiceSpec{Type: configv1alpha1.ServiceTypeNone},
				ExternalEndpoint: w.proxy.endpoint(),
			}},
		},
		secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "proxy-tls", Namespace: "pinniped-concierge", ResourceVersion: "1"},
			Type:       corev1.SecretTypeTLS,
			Data:       map[string][]byte{"tls.crt": w.pair.CertPEM, "tls.key": w.pair.KeyPEM, "ca.crt": w.ca.CertPEM()},
		},
		services: map[string]*corev1.Service{},
	}
	key, err := w.generated.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	w.cluster.caSecret = &corev1.Secret{Data: map[string][]byte{"ca.crt": w.generated.CertPEM(), "ca.key": key}}
	w.cluster.report(w.proxy.url(), w.generated.CertPEM())
	return w
}

// obey makes the agent do what the CredentialIssuer says.
func (w *world) obey(t *testing.T) {
	t.Helper()
	w.cluster.afterApply = func(c *fakeCluster) {
		spec := c.issuer.Spec.ImpersonationProxy
		if spec.TLS == nil {
			w.proxy.serve(t, serving(t, w.generated, loopback()))
			c.report(w.proxy.url(), w.generated.CertPEM())
			return
		}
		secret := c.secret
		if other, ok := c.others[spec.TLS.SecretName[strings.LastIndex(spec.TLS.SecretName, "/")+1:]]; ok {
			secret = other
		}
		w.proxy.serve(t, &certs.KeyPair{CertPEM: secret.Data["tls.crt"], KeyPEM: secret.Data["tls.key"]})
		bundle, err := advertised(*spec.TLS, secret)
		if err != nil {
			t.Error(err)
		}
		c.report(w.proxy.url(), bundle)
	}
}

// put adds a Secret with a pair and, unless it is empty, a CA bundle.
func (w *world) put(name string, pair *certs.KeyPair, bundle []byte) {
	if w.cluster.others == nil {
		w.cluster.others = map[string]*corev1.Secret{}
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "pinniped-concierge", ResourceVersion: "7"},
		Type:       corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM},
	}
	if len(bundle) > 0 {
		secret.Data["ca.crt"] = bundle
	}
	w.cluster.others[name] = secret
}

// withoutRecords returns what was stored, without our records in annotations, which hold times.
func (c *fakeCluster) withoutRecords() []map[string]any {
	var stored []map[string]any
	for _, object := range c.applied {
		copied := plain(object)
		delete(copied["metadata"].(map[string]any), "annotations")
		stored = append(stored, copied)
	}
	return stored
}

// run is one run of the command in a world.
type run struct {
	out, errOut bytes.Buffer
	err         error
}

func (w *world) connection(r *run) Connection {
	return Connection{
		IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &r.out, ErrOut: &r.errOut},
		Suffix:    "pinniped.dev", Output: "text", Timeout: 20 * time.Second,
		Connect: func(factory.ClusterFlags, string) (Cluster, func(time.Time) time.Time, error) {
			return w.cluster, func(time.Time) time.Time { return time.Time{} }, nil
		},
		Network: RealNetwork{}, Now: time.Now, Poll: 5 * time.Millisecond,
		Progress: func() *ui.Progress { return &ui.Progress{Out: &r.errOut} },
	}
}

func given(flags ...string) func(string) bool {
	return func(flag string) bool { return slices.Contains(flags, flag) }
}

func (w *world) options(r *run, changed ...string) *SetOptions {
	return &SetOptions{
		Changing:  Changing{Connection: w.connection(r), DryRun: dryRunNone, Wait: true},
		Candidate: Candidate{Secret: "proxy-tls", Changed: given(changed...)},
	}
}

// do runs a command as the command line does.
func (r *run) do(ctx context.Context, o command) *run {
	r.err = execute(ctx, o)
	return r
}

// set runs the command as the command line does.
func (w *world) set(ctx context.Context, change func(*SetOptions), changed ...string) *run {
	r := &run{}
	o := w.options(r, changed...)
	if change != nil {
		change(o)
	}
	return r.do(ctx, o)
}
