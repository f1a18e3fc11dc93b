// Package discovery reads what clients need to connect to a cluster: the CredentialIssuer and the authenticators.
//
// Connect returns a Client for one API group suffix. Its methods return typed objects, and errors in terms of the
// product: the agent is not installed, the request is not permitted, the cluster cannot be reached. ChooseStrategy
// selects a strategy from a CredentialIssuer, without requests.
package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
)

// Client reads and writes the objects of one installation: its API groups, and the core objects that belong to it. It
// is safe for concurrent use.
type Client struct {
	groups apis.Groups
	suffix string
	host   string
	rest   map[schema.GroupVersion]*rest.RESTClient
}

var certManager = schema.GroupVersion{Group: "cert-manager.io", Version: "v1"}

// clusterTrustBundles lists the versions of certificates.k8s.io with ClusterTrustBundles (KEP-3257), newest first.
var clusterTrustBundles = []schema.GroupVersion{
	{Group: "certificates.k8s.io", Version: "v1"}, {Group: "certificates.k8s.io", Version: "v1beta1"},
}

var apiRegistration = schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1"}

// Connect returns a client for the cluster of config and the API groups with suffix. It sends no request.
func Connect(config *rest.Config, suffix string) (*Client, error) {
	if err := apis.ValidateGroupSuffix(suffix); err != nil {
		return nil, fmt.Errorf("invalid API group suffix: %w", err)
	}
	scheme := apis.NewScheme(suffix)
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Secret{}, &corev1.Service{}, &corev1.ConfigMap{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})

	shared := rest.CopyConfig(config)
	shared.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	shared.ContentType = runtime.ContentTypeJSON
	shared.AcceptContentTypes = runtime.ContentTypeJSON
	if shared.UserAgent == "" {
		shared.UserAgent = "pinniped"
	}
	// A command sends few requests, so a rate limit would only slow down polling.
	shared.QPS = -1
	httpClient, err := rest.HTTPClientFor(shared)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to the cluster: %w", err)
	}
	c := &Client{
		groups: apis.GroupsFor(suffix),
		suffix: suffix,
		host:   config.Host,
		rest:   map[schema.GroupVersion]*rest.RESTClient{},
	}
	for _, gv := range append([]schema.GroupVersion{
		c.groups.Config, c.groups.Authentication, c.groups.Identity, corev1.SchemeGroupVersion, apiRegistration, certManager,
		rbacGroup, authorizationGroup, delegation.Resource().GroupVersion(), coordination,
	}, clusterTrustBundles...) {
		if c.rest[gv], err = restClient(shared, gv, httpClient); err != nil {
			return nil, fmt.Errorf("preparing the client for API group %q: %w", gv.Group, err)
		}
	}
	return c, nil
}

func restClient(shared *rest.Config, gv schema.GroupVersion, httpClient *http.Client) (*rest.RESTClient, error) {
	config := rest.CopyConfig(shared)
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(config, httpClient)
}

// Suffix returns the client's API group suffix.
func (c *Client) Suffix() string { return c.suffix }

// Groups returns the API groups with the client's suffix.
func (c *Client) Groups() apis.Groups { return c.groups }

// Host returns the address of the API server as written in the kubeconfig.
func (c *Client) Host() string { return c.host }

// CredentialIssuer returns the CredentialIssuer called name. If name is empty, it returns the only one in the cluster,
// or ErrNoCredentialIssuer or a *SeveralError. It returns ErrNotInstalled if the cluster does not serve the kind.
func (c *Client) CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error) {
	if name == "" {
		all, err := c.CredentialIssuers(ctx)
		if err != nil {
			return nil, err
		}
		return onlyIssuer(all)
	}
	var issuer configv1alpha1.CredentialIssuer
	op := operation{verb: "get", resource: c.groups.Config.WithResource("credentialissuers"), name: name}
	if err := c.get(ctx, op, &issuer); err != nil {
		return nil, err
	}
	c.stamp(&issuer)
	return &issuer, nil
}

// CredentialIssuers returns all CredentialIssuers of the cluster.
func (c *Client) CredentialIssuers(ctx context.Context) ([]configv1alpha1.CredentialIssuer, error) {
	var list configv1alpha1.CredentialIssuerList
	op := operation{verb: "list", resource: c.groups.Config.WithResource("credentialissuers")}
	if err := c.get(ctx, op, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		c.stamp(&list.Items[i])
	}
	return list.Items, nil
}

// stamp sets apiVersion and kind, which decoding into a typed object drops, so that printed objects are complete.
func (c *Client) stamp(issuer *configv1alpha1.CredentialIssuer) {
	issuer.SetGroupVersionKind(c.groups.Config.WithKind("CredentialIssuer"))
}

// KubectlName returns RESOURCE.GROUP/NAME, the CredentialIssuer's full name for kubectl. The short name may resolve to
// another installation's API group.
func KubectlName(issuer *configv1alpha1.CredentialIssuer) string {
	group := cmp.Or(issuer.GroupVersionKind().Group, apis.GroupsFor(apis.DefaultGroupSuffix).Config.Group)
	return "credentialissuers." + group + "/" + issuer.Name
}

func onlyIssuer(all []configv1alpha1.CredentialIssuer) (*configv1alpha1.CredentialIssuer, error) {
	switch len(all) {
	case 0:
		return nil, ErrNoCredentialIssuer
	case 1:
		return &all[0], nil
	}
	several := &SeveralError{Kind: "CredentialIssuer"}
	for _, issuer := range all {
		several.Names = append(several.Names, issuer.Name)
	}
	return nil, several
}

// ApplyOptions are the options of a server-side apply.
type ApplyOptions struct {
	FieldManager string // required
	Force        bool   // take over fields of other managers
	DryRun       bool   // check, but do not store
	Status       bool   // apply to the status subresource
}

// ApplyCredentialIssuer applies object to the CredentialIssuer called name by server-side apply, and returns the
// result. object has exactly the fields that the field manager wants to own, and encodes to JSON. Use a map[string]any:
// the typed object also encodes empty fields. ApplyCredentialIssuer sets apiVersion, kind and metadata.name. It returns
// ErrConflict if another manager owns a field and Force is not set, or if metadata.resourceVersion in object is
// outdated.
func (c *Client) ApplyCredentialIssuer(
	ctx context.Context,
	name string,
	object any,
	opts ApplyOptions,
) (*configv1alpha1.CredentialIssuer, error) {
	body, err := applyBody(object, c.groups.Config.WithKind("CredentialIssuer"), name)
	if err != nil {
		return nil, err
	}
	return c.patchIssuer(ctx, name, types.ApplyYAMLPatchType, body, opts)
}

// MergeCredentialIssuer changes the CredentialIssuer called name by a JSON merge patch. patch encodes to JSON; null
// removes a field even if another field manager owns it, which server-side apply cannot do. An outdated
// metadata.resourceVersion in patch gives ErrConflict. opts.Force has no effect.
func (c *Client) MergeCredentialIssuer(
	ctx context.Context,
	name string,
	patch any,
	opts ApplyOptions,
) (*configv1alpha1.CredentialIssuer, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	opts.Force = false
	return c.patchIssuer(ctx, name, types.MergePatchType, body, opts)
}

func (c *Client) patchIssuer(
	ctx context.Context,
	name string,
	kind types.PatchType,
	body []byte,
	opts ApplyOptions,
) (*configv1alpha1.CredentialIssuer, error) {
	op := operation{verb: "patch", resource: c.groups.Config.WithResource("credentialissuers"), name: name}
	request := c.request(op).
		Param("fieldManager", opts.FieldManager).
		SetHeader("Content-Type", string(kind)).
		Body(body)
	if opts.Force {
		request.Param("force", "true")
	}
	if opts.DryRun {
		request.Param("dryRun", metav1.DryRunAll)
	}
	if opts.Status {
		request.SubResource("status")
		op.subresource = "status"
	}
	var issuer configv1alpha1.CredentialIssuer
	if err := request.Do(ctx).Into(&issuer); err != nil {
		return nil, c.explain(ctx, op, err)
	}
	c.stamp(&issuer)
	return &issuer, nil
}

func applyBody(object any, gvk schema.GroupVersionKind, name string) ([]byte, error) {
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encoding the %s: %w", gvk.Kind, err)
	}
	var fields map[string]any
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return nil, fmt.Errorf("encoding the %s: %w", gvk.Kind, err)
	}
	if fields == nil {
		fields = map[string]any{}
	}
	metadata, _ := fields["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"] = name
	fields["metadata"] = metadata
	fields["apiVersion"], fields["kind"] = gvk.GroupVersion().String(), gvk.Kind
	return json.Marshal(fields)
}

// Secret returns a Secret, or ErrNotFound.
func (c *Client) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	var secret corev1.Secret
	op := operation{
		verb:      "get",
		resource:  corev1.SchemeGroupVersion.WithResource("secrets"),
		namespace: namespace,
		name:      name,
	}
	if err := c.get(ctx, op, &secret); err != nil {
		return nil, err
	}
	return &secret, nil
}

// Service returns a Service, or ErrNotFound.
func (c *Client) Service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	var service corev1.Service
	op := operation{
		verb:      "get",
		resource:  corev1.SchemeGroupVersion.WithResource("services"),
		namespace: namespace,
		name:      name,
	}
	if err := c.get(ctx, op, &service); err != nil {
		return nil, err
	}
	return &service, nil
}

// ConfigMap returns a ConfigMap, or ErrNotFound.
func (c *Client) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	var configMap corev1.ConfigMap
	op := operation{
		verb:      "get",
		resource:  corev1.SchemeGroupVersion.WithResource("configmaps"),
		namespace: namespace,
		name:      name,
	}
	if err := c.get(ctx, op, &configMap); err != nil {
		return nil, err
	}
	return &configMap, nil
}

// ClusterTrustBundle returns the PEM of a ClusterTrustBundle, or ErrNotFound, also if the API server does not serve
// them.
func (c *Client) ClusterTrustBundle(ctx context.Context, name string) (pem string, err error) {
	for _, version := range clusterTrustBundles {
		op := operation{verb: "get", name: name, resource: version.WithResource("clustertrustbundles")}
		var raw []byte
		if raw, err = c.request(op).Do(ctx).Raw(); err != nil {
			if err = c.explain(ctx, op, err); isNotFound(err) {
				continue
			}
			return "", err
		}
		var found struct {
			Spec struct {
				TrustBundle string `json:"trustBundle"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(raw, &found); err != nil {
			return "", fmt.Errorf("decoding ClusterTrustBundle %q: %w", name, err)
		}
		return found.Spec.TrustBundle, nil
	}
	return "", err
}

// AgentNamespace returns the agent's namespace: that of the Service of the aggregated login API. It returns
// ErrNotInstalled if that API is not registered.
func (c *Client) AgentNamespace(ctx context.Context) (string, error) {
	op := operation{
		verb: "get", resource: apiRegistration.WithResource("apiservices"),
		name: c.groups.Login.Version + "." + c.groups.Login.Group,
	}
	raw, err := c.request(op).Do(ctx).Raw()
	if err != nil {
		err = c.explain(ctx, op, err)
		if isNotFound(err) {
			return "", &NotInstalledError{What: "APIService " + op.name, cause: err}
		}
		return "", err
	}
	var service struct {
		Spec struct {
			Service struct {
				Namespace string `json:"namespace"`
			} `json:"service"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &service); err != nil {
		return "", fmt.Errorf("decoding APIService %q: %w", op.name, err)
	}
	if service.Spec.Service.Namespace == "" {
		return "", fmt.Errorf("APIService %q has no Service, so the agent's namespace is unknown", op.name)
	}
	return service.Spec.Service.Namespace, nil
}

// WhoAmI returns the identity that the cluster sees for the client's requests.
func (c *Client) WhoAmI(ctx context.Context) (*identityv1alpha1.WhoAmIRequest, error) {
	op := operation{verb: "create", resource: c.groups.Identity.WithResource("whoamirequests")}
	request := &identityv1alpha1.WhoAmIRequest{}
	gvk := c.groups.Identity.WithKind("WhoAmIRequest")
	request.SetGroupVersionKind(gvk)
	var answer identityv1alpha1.WhoAmIRequest
	err := c.rest[c.groups.Identity].Post().Resource(op.resource.Resource).Body(request).Do(ctx).Into(&answer)
	if err != nil {
		err = c.explain(ctx, op, err)
		if isNotFound(err) {
			return nil, &NotInstalledError{What: "API group " + c.groups.Identity.Group, cause: err}
		}
		return nil, err
	}
	answer.SetGroupVersionKind(gvk)
	return &answer, nil
}

// operation is a request in the terms of an RBAC rule.
type operation struct {
	verb        string
	resource    schema.GroupVersionResource
	subresource string
	namespace   string
	name        string
}

func (c *Client) request(op operation) *rest.Request {
	request := c.rest[op.resource.GroupVersion()].Verb(method(op.verb)).Resource(op.resource.Resource)
	if op.namespace != "" {
		request.Namespace(op.namespace)
	}
	if op.name != "" {
		request.Name(op.name)
	}
	return request
}

func (c *Client) get(ctx context.Context, op operation, into runtime.Object) error {
	if err := c.request(op).Do(ctx).Into(into); err != nil {
		return c.explain(ctx, op, err)
	}
	return nil
}
