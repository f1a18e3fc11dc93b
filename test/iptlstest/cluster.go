package iptlstest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
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
	wanted := decoded[corev1.ConfigMap](object)
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
	fields := decoded[configv1alpha1.CredentialIssuer](object)
	if fields.ResourceVersion != c.Issuer.ResourceVersion {
		return nil, fmt.Errorf("the object has been modified: %w", discovery.ErrConflict)
	}
	if opts.DryRun {
		return c.Issuer.DeepCopy(), nil
	}
	c.Applied = append(c.Applied, decoded[map[string]any](object))
	spec, want := c.Issuer.Spec.ImpersonationProxy, fields.Spec.ImpersonationProxy
	spec.TLS, spec.ExternalEndpoint = want.TLS, cmp.Or(want.ExternalEndpoint, spec.ExternalEndpoint)
	spec.Mode = cmp.Or(want.Mode, spec.Mode)
	spec.Service.Type = cmp.Or(want.Service.Type, spec.Service.Type)
	spec.Service.LoadBalancerIP = cmp.Or(want.Service.LoadBalancerIP, spec.Service.LoadBalancerIP)
	for key, value := range fields.Annotations {
		metav1.SetMetaDataAnnotation(&c.Issuer.ObjectMeta, key, value)
	}
	c.Bump()
	if c.AfterApply != nil {
		c.AfterApply(c)
	}
	return c.Issuer.DeepCopy(), nil
}

// MergeCredentialIssuer stores a merge patch. An outdated resource version is a conflict. The agent does not react to
// a patch of annotations only.
func (c *Cluster) MergeCredentialIssuer(_ context.Context, _ string, patch any,
	opts discovery.ApplyOptions,
) (*configv1alpha1.CredentialIssuer, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	fields := decoded[map[string]any](patch)
	_, changesSpec := fields["spec"]
	if changesSpec || opts.DryRun {
		c.Options = append(c.Options, opts)
		if c.ApplyErr != nil {
			return nil, c.ApplyErr
		}
		if c.BeforeApply != nil {
			c.BeforeApply(c)
		}
	}
	if fields["metadata"].(map[string]any)["resourceVersion"] != c.Issuer.ResourceVersion {
		return nil, fmt.Errorf("the object has been modified: %w", discovery.ErrConflict)
	}
	if opts.DryRun {
		return c.Issuer.DeepCopy(), nil
	}
	merged := decoded[configv1alpha1.CredentialIssuer](
		discoverytest.Merge(decoded[map[string]any](c.Issuer), fields))
	c.Issuer = &merged
	c.Bump()
	if changesSpec {
		c.Applied = append(c.Applied, fields)
		if c.AfterApply != nil {
			c.AfterApply(c)
		}
	}
	return c.Issuer.DeepCopy(), nil
}

// decoded converts an object through JSON.
func decoded[T any](object any) (result T) {
	encoded, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	if err := json.Unmarshal(encoded, &result); err != nil {
		panic(err)
	}
	return result
}

// OrElse returns a, or b if a is empty.
func OrElse(a, b string) string { return cmp.Or(a, b) }

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
	return discoverytest.ProxyStrategy(url, bundle)
}

// FailedReport returns the strategy of a failed proxy.
func FailedReport(reason configv1alpha1.StrategyReason, message string) configv1alpha1.CredentialIssuerStrategy {
	return discoverytest.FailedStrategy(configv1alpha1.StrategyImpersonationProxy, reason, message)
}

// WithoutRecords returns the stored changes without our records in annotations, which contain times.
func (c *Cluster) WithoutRecords() []map[string]any {
	var stored []map[string]any
	for _, object := range c.Applied {
		copied := decoded[map[string]any](object)
		delete(copied["metadata"].(map[string]any), "annotations")
		stored = append(stored, copied)
	}
	return stored
}

// Delegations returns the delegations of a namespace, or all.
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

// MayReadSecret returns the field MayRead, and records the question.
func (c *Cluster) MayReadSecret(_ context.Context, account, secret types.NamespacedName) (bool, error) {
	c.Reviewed = append(c.Reviewed, account.String()+" "+secret.String())
	return c.MayRead, c.MayReadErr
}

func grantKey(object map[string]any) string {
	metadata := object["metadata"].(map[string]any)
	return fmt.Sprintf("%v %v/%v", object["kind"], metadata["namespace"], metadata["name"])
}

// ApplyGrant stores an object of a delegation.
func (c *Cluster) ApplyGrant(_ context.Context, object map[string]any, opts discovery.ApplyOptions) error {
	c.Options = append(c.Options, opts)
	if c.Grants == nil {
		c.Grants = map[string]map[string]any{}
	}
	withVersion := func(version any) map[string]any {
		return discoverytest.Merge(object, map[string]any{"metadata": map[string]any{"resourceVersion": version}})
	}
	before := c.Grants[grantKey(object)]
	version, _, _ := unstructured.NestedFieldNoCopy(before, "metadata", "resourceVersion")
	if !opts.DryRun && !reflect.DeepEqual(before, withVersion(version)) { // server-side apply does not write otherwise
		c.Grants[grantKey(object)] = withVersion(strconv.Itoa(len(c.Options))) // a new one with each change
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

// BumpSecret gives the Secret a new resource version, as every change does.
func (c *Cluster) BumpSecret() {
	c.version++
	c.TLSSecret.ResourceVersion = strconv.Itoa(c.version)
}

// ApplySecret is a server-side apply of the Secret, with conflicts.
func (c *Cluster) ApplySecret(_ context.Context, namespace, name string, object any,
	opts discovery.ApplyOptions,
) (*corev1.Secret, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.BeforeSecret != nil {
		c.BeforeSecret(c)
	}
	wanted := decoded[corev1.Secret](object)
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

// Certificate returns cert-manager's Certificate, if there is one.
func (c *Cluster) Certificate(_ context.Context, _, name string) (*discovery.Certificate, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.CertManager == nil {
		return nil, fmt.Errorf("reading certificates %q: %w", name, discovery.ErrNotFound)
	}
	return c.CertManager, nil
}

// Certificates returns cert-manager's Certificate, if there is one.
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
	if c.AfterList != nil {
		c.AfterList(c)
	}
	return []discovery.Certificate{found}, nil
}

// DeleteSecret deletes the Secret, unless it has changed since.
func (c *Cluster) DeleteSecret(_ context.Context, secret *corev1.Secret) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.TLSSecret == nil || c.TLSSecret.ResourceVersion != secret.ResourceVersion || c.TLSSecret.UID != secret.UID {
		return discovery.ErrConflict
	}
	c.TLSSecret, c.owned = nil, nil
	return nil
}

// Secret returns a copy of a Secret, and records that it was read.
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
