package migrate

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// The names in the manifests of Pinniped and of the agent.
const (
	namespace = "pinniped-concierge"
	app       = "pinniped-concierge"
)

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func v1(group, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
}

func rbac(resource string) schema.GroupVersionResource {
	return v1("rbac.authorization.k8s.io", resource)
}

// in returns references to objects of one kind.
func in(namespace string, resource schema.GroupVersionResource, names ...string) []discovery.Ref {
	refs := make([]discovery.Ref, 0, len(names))
	for _, name := range names {
		refs = append(refs, discovery.Ref{Resource: resource, Namespace: namespace, Name: name})
	}
	return refs
}

// granted returns a role and its role binding of the same name.
func granted(namespace string, names ...string) []discovery.Ref {
	if namespace == "" {
		return append(in("", rbac("clusterrolebindings"), names...), in("", rbac("clusterroles"), names...)...)
	}
	return append(in(namespace, rbac("rolebindings"), names...), in(namespace, rbac("roles"), names...)...)
}

var deployment = discovery.Ref{Resource: v1("apps", "deployments"), Namespace: namespace, Name: app}

var issuer = discovery.Ref{
	Resource: apis.GroupsFor(apis.DefaultGroupSuffix).Config.WithResource("credentialissuers"), Name: app + "-config",
}

// config is Pinniped's ConfigMap; the agent's has another name.
var config = discovery.Ref{Resource: core("configmaps"), Namespace: namespace, Name: app + "-config"}

var agentConfig = discovery.Ref{Resource: core("configmaps"), Namespace: namespace, Name: app + "-agent"}

// applied returns the objects that both manifests have, and that deploy/upgrade applies.
func applied() []discovery.Ref {
	groups := apis.GroupsFor(apis.DefaultGroupSuffix)
	return slices.Concat(
		in("", v1("apiextensions.k8s.io", "customresourcedefinitions"), "credentialissuers."+groups.Config.Group,
			"jwtauthenticators."+groups.Authentication.Group, "webhookauthenticators."+groups.Authentication.Group),
		in("", v1("apiregistration.k8s.io", "apiservices"), groups.Login.Version+"."+groups.Login.Group,
			groups.Identity.Version+"."+groups.Identity.Group),
		in("", rbac("clusterrolebindings"), app),
		granted("", app+"-impersonation-proxy", app+"-pre-authn-apis"),
		in("kube-system", rbac("rolebindings"), app+"-extension-apiserver-authentication-reader"),
		in(namespace, core("serviceaccounts"), app, app+"-impersonation-proxy"),
		in(namespace, core("services"), app+"-api", app+"-proxy"),
		[]discovery.Ref{deployment},
	)
}

// shared returns the objects that both Pinniped and the agent need.
func shared() []discovery.Ref {
	return slices.Concat(in("", core("namespaces"), namespace), []discovery.Ref{issuer}, applied())
}

// pinnipeds returns the objects that only Pinniped needs: from its manifests, or created by it.
func pinnipeds() []discovery.Ref {
	return slices.Concat(
		in(namespace, v1("apps", "deployments"), app+"-kube-cert-agent"),
		granted(namespace, app+"-kube-cert-agent", app+"-aggregated-api-server"),
		in(namespace, core("serviceaccounts"), app+"-kube-cert-agent"),
		in(namespace, core("secrets"), app+"-impersonation-proxy"), // a token of earlier versions
		[]discovery.Ref{config},
		granted("kube-system", app+"-kube-system-pod-read"),
		granted("kube-public", app+"-cluster-info-lister-watcher"),
		granted("", app+"-aggregated-api-server", app+"-create-token-credential-requests"),
	)
}

// agents returns the objects that only the agent needs: from deploy/upgrade, or created by it, without the replicas'
// Leases.
func agents() []discovery.Ref {
	const flowControl = "flowcontrol.apiserver.k8s.io"
	const admission = "admissionregistration.k8s.io" // not in API servers before 1.30
	return slices.Concat(
		in(namespace, v1("networking.k8s.io", "networkpolicies"), app),
		in(namespace, v1("policy", "poddisruptionbudgets"), app),
		granted(namespace, app+"-agent"),
		[]discovery.Ref{agentConfig},
		in(namespace, core("secrets"), app+"-impersonation-proxy-last-known-good-certificate"),
		granted("default", app+"-events"),
		granted("", app+"-agent"),
		in("", v1(flowControl, "flowschemas"), app, app+"-reviews", app+"-logins"),
		in("", v1(flowControl, "prioritylevelconfigurations"), app, app+"-reviews", app+"-logins"),
		in("", v1(admission, "validatingadmissionpolicybindings"), app+"-token-secrets"),
		in("", v1(admission, "validatingadmissionpolicies"), app+"-token-secrets"),
	)
}

// kubectlName returns RESOURCE.GROUP/NAME, an object's name for kubectl.
func kubectlName(ref discovery.Ref) string {
	return ref.Resource.GroupResource().String() + "/" + ref.Name
}

// describe returns kubectlName, after the namespace if there is one.
func describe(ref discovery.Ref) string {
	if ref.Namespace == "" {
		return kubectlName(ref)
	}
	return ref.Namespace + "/" + kubectlName(ref)
}
