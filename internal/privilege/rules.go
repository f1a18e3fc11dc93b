package privilege

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// maxQuestions is the maximum number of reviews for one rule. openToAll is false for a rule that needs more.
const maxQuestions = 100

// openToAll reports whether every authenticated user has all these permissions. Then a request without impersonation
// can do no more than the user could. Every installation of Pinniped grants such permissions, for its login APIs.
func (c *check) openToAll(ctx context.Context, questions []authorizationv1.SelfSubjectAccessReviewSpec) (bool, error) {
	if c.Reviews == nil || len(questions) == 0 || len(questions) > maxQuestions {
		return false, nil
	}
	for _, question := range questions {
		review, err := c.Reviews.Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				ResourceAttributes:    question.ResourceAttributes,
				NonResourceAttributes: question.NonResourceAttributes,
				// No user and no other group, not even that of all service accounts.
				Groups: []string{"system:authenticated"},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("checking every authenticated user's access: %w", err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// allOf returns one review for each combination in rule, or nil if there are more than maxQuestions.
func allOf(rule authorizationv1.ResourceRule, namespace string) []authorizationv1.SelfSubjectAccessReviewSpec {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	if n := len(rule.Verbs) * len(rule.APIGroups) * len(rule.Resources) * len(names); n == 0 || n > maxQuestions {
		return nil
	}
	var all []authorizationv1.SelfSubjectAccessReviewSpec
	for _, verb := range rule.Verbs {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					all = append(all, question(namespace, verb, group, resource, name))
				}
			}
		}
	}
	return all
}

// allPaths is allOf for non-resource paths.
func allPaths(verbs, paths []string) []authorizationv1.SelfSubjectAccessReviewSpec {
	var all []authorizationv1.SelfSubjectAccessReviewSpec
	for _, verb := range verbs {
		for _, path := range paths {
			all = append(all, pathQuestion(verb, path))
		}
	}
	return all
}
