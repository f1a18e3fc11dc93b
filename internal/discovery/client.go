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
	"errors"
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
	op := c.issuerOperation("get", name)
	return c.stamped(decoded(ctx, c, op, c.request(op), &configv1alpha1.CredentialIssuer{}))
}

func (c *Client) issuerOperation(verb, name string) operation {
	return operation{verb: verb, resource: c.groups.Config.WithResource("credentialissuers"), name: name}
}

// CredentialIssuers returns all CredentialIssuers of the cluster.
func (c *Client) CredentialIssuers(ctx context.Context) ([]configv1alpha1.CredentialIssuer, error) {
	op := c.issuerOperation("list", "")
	list, err := decoded(ctx, c, op, c.request(op), &configv1alpha1.CredentialIssuerList{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		list.Items[i].SetGroupVersionKind(c.groups.Config.WithKind("CredentialIssuer"))
	}
	return list.Items, nil
}

// stamped sets apiVersion and kind, which decoding into a typed object drops, so that printed objects are complete.
func (c *Client) stamped(
	issuer *configv1alpha1.CredentialIssuer,
	err error,
) (*configv1alpha1.CredentialIssuer, error) {
	if err == nil {
		issuer.SetGroupVersionKind(c.groups.Config.WithKind("CredentialIssuer"))
	}
	return issuer, err
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
	op := c.issuerOperation("patch", name)
	if opts.Status {
		op.subresource = "status"
	}
	return c.stamped(decoded(ctx, c, op, c.patch(op, kind, body, opts), &configv1alpha1.CredentialIssuer{}))
}

// patch returns the request that patches the object of op.
func (c *Client) patch(op operation, kind types.PatchType, body []byte, opts ApplyOptions) *rest.Request {
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
	return request
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

// ClusterTrustBundle returns the PEM of a ClusterTrustBundle, or ErrNotFound, also if the API server does not serve
// them.
func (c *Client) ClusterTrustBundle(ctx context.Context, name string) (pem string, err error) {
	for _, version := range clusterTrustBundles {
		op := operation{verb: "get", name: name, resource: version.WithResource("clustertrustbundles")}
		var found struct {
			Spec struct {
				TrustBundle string `json:"trustBundle"`
			} `json:"spec"`
		}
		err = c.decode(ctx, op, c.request(op), fmt.Sprintf("ClusterTrustBundle %q", name), &found)
		if !errors.Is(err, ErrNotFound) {
			return found.Spec.TrustBundle, err
		}
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
	var service struct {
		Spec struct {
			Service struct {
				Namespace string `json:"namespace"`
			} `json:"service"`
		} `json:"spec"`
	}
	err := c.decode(ctx, op, c.request(op), fmt.Sprintf("APIService %q", op.name), &service)
	switch {
	case errors.Is(err, ErrNotFound):
		return "", &NotInstalledError{What: "APIService " + op.name, cause: err}
	case err != nil:
		return "", err
	case service.Spec.Service.Namespace == "":
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
	answer, err := decoded(ctx, c, op, c.request(op).Body(request), &identityv1alpha1.WhoAmIRequest{})
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, &NotInstalledError{What: "API group " + c.groups.Identity.Group, cause: err}
	case err == nil:
		answer.SetGroupVersionKind(gvk)
	}
	return answer, err
}

// operation is a request in the terms of an RBAC rule.
type operation struct {
	verb        string
	resource    schema.GroupVersionResource
	subresource string
	namespace   string
	name        string
}

func coreOperation(verb, resource, namespace, name string) operation {
	return operation{verb, corev1.SchemeGroupVersion.WithResource(resource), "", namespace, name}
}

func (c *Client) request(op operation) *rest.Request {
	method := http.MethodGet
	switch op.verb {
	case "patch":
		method = http.MethodPatch
	case "delete":
		method = http.MethodDelete
	case "create":
		method = http.MethodPost
	}
	request := c.rest[op.resource.GroupVersion()].Verb(method).Resource(op.resource.Resource).SubResource(op.subresource)
	if op.namespace != "" {
		request.Namespace(op.namespace)
	}
	if op.name != "" {
		request.Name(op.name)
	}
	return request
}

// decoded sends the request of op, and returns object with the response, or nil.
func decoded[T any, O interface {
	*T
	runtime.Object
}](ctx context.Context, c *Client, op operation, request *rest.Request, object O) (O, error) {
	if err := request.Do(ctx).Into(object); err != nil {
		return nil, c.explain(ctx, op, err)
	}
	return object, nil
}

// decode sends the request of op, and decodes the response, which is what, from JSON.
func (c *Client) decode(ctx context.Context, op operation, request *rest.Request, what string, into any) error {
	raw, err := request.Do(ctx).Raw()
	if err != nil {
		return c.explain(ctx, op, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decoding %s: %w", what, err)
	}
	return nil
}
