package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Errors for errors.Is. They are wrapped in errors that name the object.
var (
	// ErrNotInstalled means that the cluster does not serve the API: no agent is installed with this suffix.
	ErrNotInstalled = errors.New("the pinniped agent is not installed")
	// ErrNoCredentialIssuer means that the API is installed, but has no CredentialIssuer.
	ErrNoCredentialIssuer = withHint(errors.New("no CredentialIssuer in the cluster"),
		"the agent creates one when it first starts: check whether its pods are running; if it was "+
			"deleted, apply it again: kubectl apply --server-side -f deploy/concierge/credentialissuer.yaml")
	// ErrNotFound means that an object that was requested by name does not exist.
	ErrNotFound = errors.New("not found")
	// ErrForbidden means that the cluster does not permit the request. See ForbiddenError.
	ErrForbidden = errors.New("forbidden")
	// ErrUnauthorized means that the cluster does not accept the kubeconfig's credential.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrPluginFailed means that the kubeconfig's credential plugin failed. It is an ErrUnauthorized.
	ErrPluginFailed = fmt.Errorf("%w: the credential plugin returned no credential", ErrUnauthorized)
	// ErrUnreachable means that the API server did not respond.
	ErrUnreachable = errors.New("the cluster cannot be reached")
	// ErrConflict means that another manager owns a field, or that the object has changed.
	ErrConflict = errors.New("conflict")
)

// NotInstalledError names the missing part of the API. It is an ErrNotInstalled.
type NotInstalledError struct {
	What  string
	cause error
}

func (e *NotInstalledError) Error() string {
	return ErrNotInstalled.Error() + ": the cluster has no " + e.What
}

// Is implements errors.Is.
func (e *NotInstalledError) Is(target error) bool { return target == ErrNotInstalled }

// Unwrap returns the cause.
func (e *NotInstalledError) Unwrap() error { return e.cause }

// Hint returns a hint.
func (e *NotInstalledError) Hint() string {
	return "install the agent in this cluster, pick another cluster with --kubeconfig-context, or set the API group " +
		"suffix that the agent was installed with"
}

// SeveralError means that there are several candidates and the caller named none.
type SeveralError struct {
	Kind  string   // the kind of the candidates
	Names []string // as given on the command line
	hint  string
}

func (e *SeveralError) Error() string {
	return fmt.Sprintf("several %ss in the cluster: %s", e.Kind, strings.Join(e.Names, ", "))
}

// Hint returns a hint.
func (e *SeveralError) Hint() string {
	if e.hint != "" {
		return e.hint
	}
	return "name one of them with --credential-issuer"
}

// ForbiddenError is the request that the cluster does not permit. It is an ErrForbidden.
type ForbiddenError struct {
	Verb      string
	Resource  schema.GroupResource // with subresource, such as credentialissuers/status
	Namespace string
	Name      string
	cause     error
}

func (e *ForbiddenError) Error() string {
	text := fmt.Sprintf("not permitted to %s %s", e.Verb, e.Resource)
	if e.Name != "" {
		text += fmt.Sprintf(" %q", e.Name)
	}
	if e.Namespace != "" {
		text += fmt.Sprintf(" in namespace %q", e.Namespace)
	}
	return text
}

// Is implements errors.Is.
func (e *ForbiddenError) Is(target error) bool { return target == ErrForbidden }

// Unwrap returns the cause.
func (e *ForbiddenError) Unwrap() error { return e.cause }

// Hint returns a hint.
func (e *ForbiddenError) Hint() string {
	kind := "ClusterRole"
	if e.Namespace != "" {
		kind = "Role"
	}
	return fmt.Sprintf(
		"use an administrator's kubeconfig, or ask for this %s and a %sBinding for you:\n%s",
		kind,
		kind,
		e.Role(),
	)
}

// Role returns the manifest of a Role or ClusterRole that permits the request. Its name contains the permission, so
// that several of them can coexist.
func (e *ForbiddenError) Role() string {
	kind, name, where := "ClusterRole", "pinniped-"+e.Verb+"-"+strings.ReplaceAll(e.Resource.Resource, "/", "-"), ""
	if e.Name != "" {
		name += "-" + e.Name
	}
	if e.Namespace != "" {
		kind, where = "Role", ", namespace: "+e.Namespace
	}
	rule := fmt.Sprintf("- apiGroups: [%q]\n  resources: [%q]\n", e.Resource.Group, e.Resource.Resource)
	if e.Name != "" && e.Verb != "list" && e.Verb != "create" {
		rule += fmt.Sprintf("  resourceNames: [%q]\n", e.Name)
	}
	return fmt.Sprintf(
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata: {name: %s%s}\nrules:\n%s",
		kind,
		name,
		where,
		rule+"  verbs: ["+e.Verb+"]",
	)
}

// UnreachableError is why the API server did not respond. It is an ErrUnreachable.
type UnreachableError struct {
	Host  string
	cause error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("reaching the cluster at %q: %v", e.Host, e.cause)
}

// Is implements errors.Is.
func (e *UnreachableError) Is(target error) bool { return target == ErrUnreachable }

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.cause }

// Hint returns a hint.
func (e *UnreachableError) Hint() string {
	if dns, ok := errors.AsType[*net.DNSError](e.cause); ok {
		return fmt.Sprintf(
			"the host name %q does not resolve: check the kubeconfig's server, and whether a VPN is needed",
			dns.Name,
		)
	}
	return "check the kubeconfig's server and CA bundle, and whether you need a VPN or an HTTP proxy"
}

// pluginFailed is the prefix of client-go's error when an exec credential plugin fails; that error has no type.
const pluginFailed = "getting credentials:"

// failure is an error response, in our words.
type failure struct {
	doing string
	kind  error // one of the sentinels, or nil
	cause error
	hint  string // hint on the existing objects, if one was not found by name
}

func (e *failure) Error() string {
	if errors.Is(e.kind, ErrNotFound) {
		return e.doing + ": not found"
	}
	return e.doing + ": " + e.cause.Error()
}

// Is implements errors.Is.
func (e *failure) Is(target error) bool {
	return e.kind != nil && errors.Is(e.kind, target)
}
func (e *failure) Unwrap() error { return e.cause }

func (e *failure) Hint() string {
	switch {
	case errors.Is(e.kind, ErrPluginFailed):
		return "the credential plugin in the kubeconfig returned no credential; its output is above"
	case errors.Is(e.kind, ErrUnauthorized):
		return "the credential in the kubeconfig does not work: it may have expired"
	case errors.Is(e.kind, ErrNotFound) && e.hint != "":
		return e.hint
	case errors.Is(e.kind, ErrConflict):
		return "another client changed or manages this object: check it, then run the command again"
	}
	return ""
}

// explain turns an error of the API server or the network into one of this package's errors.
func (c *Client) explain(ctx context.Context, op operation, err error) error {
	resource := op.resource.GroupResource()
	if op.subresource != "" {
		resource.Resource += "/" + op.subresource
	}
	doing := map[string]string{
		"get": "reading", "list": "listing", "patch": "applying", "create": "creating", "delete": "deleting",
	}[op.verb] + " " + resource.String()
	if op.name != "" {
		doing += fmt.Sprintf(" %q", op.name)
	}
	if op.namespace != "" {
		doing += fmt.Sprintf(" in namespace %q", op.namespace)
	}
	var netErr *url.Error
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &UnreachableError{Host: c.host, cause: fmt.Errorf("%s: no response in time: %w", doing, ctx.Err())}
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", doing, ctx.Err())
	case apierrors.IsForbidden(err):
		return &ForbiddenError{Verb: op.verb, Resource: resource, Namespace: op.namespace, Name: op.name, cause: err}
	case apierrors.IsUnauthorized(err):
		return &failure{doing: doing, kind: ErrUnauthorized, cause: err}
	case apierrors.IsConflict(err):
		return &failure{doing: doing, kind: ErrConflict, cause: err}
	case apierrors.IsNotFound(err):
		if c.isOurs(op.resource) && (op.verb == "list" || !c.served(ctx, op.resource)) {
			return &NotInstalledError{What: "API " + op.resource.GroupVersion().String(), cause: err}
		}
		missing := &failure{doing: doing, kind: ErrNotFound, cause: err}
		if c.isOurs(op.resource) && op.verb == "get" {
			missing.hint = "list them: kubectl get " + op.resource.GroupResource().String()
		}
		return missing
	case errors.As(err, &netErr):
		if strings.HasPrefix(netErr.Err.Error(), pluginFailed) {
			return &failure{doing: doing, kind: ErrPluginFailed, cause: netErr.Err}
		}
		return &UnreachableError{Host: c.host, cause: netErr.Err}
	}
	return &failure{doing: doing, cause: err}
}

func (c *Client) isOurs(resource schema.GroupVersionResource) bool {
	gv := resource.GroupVersion()
	return gv == c.groups.Config || gv == c.groups.Authentication
}

// served reports whether the cluster serves the resource: "not found" may also mean a missing object of a served kind.
// If that cannot be found out, it returns true.
func (c *Client) served(ctx context.Context, resource schema.GroupVersionResource) bool {
	err := c.rest[resource.GroupVersion()].Get().Resource(resource.Resource).Param("limit", "1").Do(ctx).Error()
	return !apierrors.IsNotFound(err)
}
