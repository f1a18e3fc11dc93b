package iptlstest

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Cluster simulates an API server with one CredentialIssuer, one Secret and some Services, with resource versions.
type Cluster struct {
	Mu        sync.Mutex
	Issuer    *configv1alpha1.CredentialIssuer
	TLSSecret *corev1.Secret
	CASecret  *corev1.Secret // of the generated CA; may be nil
	Others    map[string]*corev1.Secret
	services  map[string]*corev1.Service
	version   int

	Applied []map[string]any // without dry runs
	Options []discovery.ApplyOptions
	// BeforeApply and AfterApply are called before and after a change, and may change the objects: an agent reacts in
	// AfterApply, another program interferes in BeforeApply.
	BeforeApply, AfterApply func(*Cluster)
	NamespaceErr, ApplyErr  error
	IssuerErr               error // from reading the CredentialIssuer
	Still                   bool  // the API server accepts requests and never responds
	CASecretErr             error
	CertManager             *discovery.Certificate
	CertificatesErr         error // from listing them
	// AfterList is called after each list of the Certificates, to simulate cert-manager.
	AfterList func(*Cluster)
	ReadErr   error    // from reading the Secret
	owned     []string // keys of the Secret that our apply owns

	// Access to Secrets of other namespaces: what is permitted, which reviews were sent, and which Secrets were read.
	Delegated                  []delegation.Delegation
	MayRead                    bool
	DelegationsErr, MayReadErr error
	Reviewed, SecretsRead      []string
	Grants                     map[string]map[string]any
	GrantErr                   error
	// Leases are the Leases of the agent's replicas; nil means one that was just renewed.
	Leases []discovery.ReplicaLease
	// Revisions is the agent's revision history; nil for an agent that keeps none.
	Revisions    *corev1.ConfigMap
	RevisionsErr error    // from reading it
	retired      []string // its keys that our apply owns
	// Fields are the fields of spec.impersonationProxy.tls; nil means that the schema is not available.
	Fields []string
	// BeforeSecret and AfterSecret are like BeforeApply and AfterApply, for changes of the Secret.
	BeforeSecret, AfterSecret func(*Cluster)
	// AfterRevisions is called after each change of Revisions.
	AfterRevisions func(*Cluster)
}

// PutService creates or replaces a Service.
func (c *Cluster) PutService(service *corev1.Service) { c.services[service.Name] = service }

// Bump gives the CredentialIssuer a new resource version, as every change does.
func (c *Cluster) Bump() {
	c.version++
	c.Issuer.ResourceVersion = strconv.Itoa(c.version)
}

// CredentialIssuer returns a copy of the only CredentialIssuer. It ignores the name.
func (c *Cluster) CredentialIssuer(_ context.Context, _ string) (*configv1alpha1.CredentialIssuer, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.IssuerErr != nil {
		return nil, c.IssuerErr
	}
	if c.Issuer == nil {
		return nil, discovery.ErrNoCredentialIssuer
	}
	return c.Issuer.DeepCopy(), nil
}

// ConfigMap returns the revision history.
func (c *Cluster) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	switch {
	case name != "pinniped-concierge-revisions":
		return nil, discovery.ErrNotFound
	case c.RevisionsErr != nil:
		return nil, c.RevisionsErr
	case c.Revisions == nil:
		return nil, discovery.ErrNotFound
	}
	return c.Revisions.DeepCopy(), nil
}

// ClusterTrustBundle returns ErrNotFound.
func (c *Cluster) ClusterTrustBundle(context.Context, string) (string, error) {
	return "", discovery.ErrNotFound
}

// ApplyConfigMap is a server-side apply of the revision history.
func (c *Cluster) ApplyConfigMap(_ context.Context, _, _ string, object any, opts discovery.ApplyOptions) (
	*corev1.ConfigMap, error,
) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Options = append(c.Options, opts)
	if c.BeforeApply != nil {
		c.BeforeApply(c)
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var wanted corev1.ConfigMap
	if err := json.Unmarshal(encoded, &wanted); err != nil {
		return nil, err
	}
	if c.Revisions == nil || wanted.ResourceVersion != c.Revisions.ResourceVersion {
		return nil, fmt.Errorf("the ConfigMap has been modified: %w", discovery.ErrConflict)
	}
	for _, key := range c.retired {
		delete(c.Revisions.Data, key)
	}
	maps.Copy(c.Revisions.Data, wanted.Data)
	c.retired = slices.Collect(maps.Keys(wanted.Data))
	c.version++
	c.Revisions.ResourceVersion = strconv.Itoa(c.version)
	if c.AfterRevisions != nil {
		c.AfterRevisions(c)
	}
	return c.Revisions.DeepCopy(), nil
}

// ApplyCredentialIssuer stores the fields. An outdated resource version is a conflict.
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
	spec.Service.Type = cmp.Or(want.Service.Type, spec.Service.Type)
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

// annotate stores a merge patch of annotations only. The agent does not react to it.
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

// MergeCredentialIssuer stores a merge patch. An outdated resource version is a conflict.
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

// plain converts an object to decoded JSON.
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

// merge applies a JSON merge patch (RFC 7396).
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

// OrElse returns a, or b if a is empty.
func OrElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
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

// ReplicaLeases returns the field Leases, or a Lease that was just renewed.
func (c *Cluster) ReplicaLeases(context.Context, string) ([]discovery.ReplicaLease, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Leases == nil {
		const lasts = 30 * 24 * time.Hour // longer than any test advances its clock
		return []discovery.ReplicaLease{{Renewed: time.Now(), Lasts: lasts}}, nil
	}
	return c.Leases, nil
}

// TLSFields returns the field Fields.
func (c *Cluster) TLSFields(context.Context) ([]string, error) {
	if c.Fields == nil {
		return nil, discovery.ErrNotFound
	}
	return c.Fields, nil
}

// AgentNamespace returns the default namespace of the agent.
func (c *Cluster) AgentNamespace(ctx context.Context) (string, error) {
	if c.Still {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return "pinniped-concierge", c.NamespaceErr
}

// Report makes the status report a working proxy at url with this bundle.
func (c *Cluster) Report(url string, bundle []byte) {
	c.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{ProxyReport(url, bundle)}
	c.Bump()
}

// ProxyReport returns the strategy of a working proxy.
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

// FailedReport returns the strategy of a failed proxy.
func FailedReport(reason configv1alpha1.StrategyReason, message string) configv1alpha1.CredentialIssuerStrategy {
	return configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyImpersonationProxy, Status: configv1alpha1.StrategyError, Reason: reason,
		Message: message,
	}
}

// WithoutRecords returns the stored changes without our records in annotations, which contain times.
func (c *Cluster) WithoutRecords() []map[string]any {
	var stored []map[string]any
	for _, object := range c.Applied {
		copied := plain(object)
		delete(copied["metadata"].(map[string]any), "annotations")
		stored = append(stored, copied)
	}
	return stored
}
