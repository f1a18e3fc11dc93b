package privilege

import (
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// everybodysPaths are the paths that every service account may read: versions, discovery, health, and the token
// issuer's keys. A trailing "*" is a wildcard.
var everybodysPaths = []string{
	"/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks", "/openid/v1/jwks/",
	"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/",
	"/healthz", "/livez", "/readyz", "/healthz/", "/livez/", "/readyz/",
}

// excessive reports whether rule permits more than impersonation, reviews of oneself, or logging in.
func (c *Checker) excessive(rule authorizationv1.ResourceRule) bool {
	if every(rule.Verbs, isImpersonation) {
		return false
	}
	if every(rule.Verbs, is("create")) &&
		every(rule.Resources, is("selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews")) &&
		every(rule.APIGroups, is("authentication.k8s.io", "authorization.k8s.io")) {
		return false
	}
	// Every service account may read these since Kubernetes 1.37 (KEP-3257).
	if every(rule.Verbs, is("get", "list", "watch")) && every(rule.Resources, is("clustertrustbundles")) &&
		every(rule.APIGroups, is("certificates.k8s.io")) {
		return false
	}
	login := every(rule.Verbs, is("create", "list")) &&
		every(rule.Resources, is("tokencredentialrequests", "whoamirequests")) &&
		every(rule.APIGroups, is(c.OpenGroups...))
	return !login
}

// excessivePaths returns the paths of rule that are not open to every service account.
func excessivePaths(rule authorizationv1.NonResourceRule) []string {
	if !every(rule.Verbs, is("get", "head")) {
		return rule.NonResourceURLs
	}
	var more []string
	for _, path := range rule.NonResourceURLs {
		if !slices.Contains(everybodysPaths, path) {
			more = append(more, path)
		}
	}
	return more
}

// isImpersonation reports whether verb is for impersonation, plain or constrained.
func isImpersonation(verb string) bool {
	return verb == "impersonate" || strings.HasPrefix(verb, "impersonate:") || strings.HasPrefix(verb, "impersonate-on:")
}

func is(known ...string) func(string) bool {
	return func(s string) bool { return slices.Contains(known, s) }
}

// every reports whether have is true for all of some. It is true for an empty list: such a rule permits nothing.
func every(some []string, have func(string) bool) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !have(s) })
}

// describe describes a rule, such as "get,list secrets,pods in kube-system".
func describe(rule authorizationv1.ResourceRule, namespace string) string {
	var what []string
	for _, resource := range rule.Resources {
		for _, group := range rule.APIGroups {
			what = append(what, strings.TrimSuffix(resource+"."+group, "."))
		}
	}
	text := strings.Join(rule.Verbs, ",") + " " + short(what)
	if len(rule.ResourceNames) > 0 {
		text += " named " + short(rule.ResourceNames)
	}
	if namespace != "" {
		text += " in " + namespace
	}
	return text
}

// short joins up to four words and elides the rest.
func short(words []string) string {
	const most = 4
	if len(words) > most {
		return strings.Join(words[:most], ",") + ",..."
	}
	return strings.Join(words, ",")
}
