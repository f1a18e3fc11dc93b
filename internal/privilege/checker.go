// Package privilege finds out which permissions a credential has beyond impersonation, by asking the API server with
// that credential.
//
// The proxy's upstream credential should have no other permissions. Then a request that by mistake lacks impersonation
// headers can do nothing. An administrator may grant more without noticing: a binding for all service accounts is
// enough. Permissions of every authenticated user are ignored.
package privilege

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

const (
	maxExcess = 20 // per check
	maxReason = 256
)

// Checker checks one credential. Its fields must be set before use.
type Checker struct {
	// Namespaces are the namespaces whose rules are checked, in addition to cluster-wide ones.
	Namespaces []string
	// OpenGroups are the API groups in which everyone may create TokenCredentialRequests and WhoAmIRequests. These
	// permissions are ignored.
	OpenGroups []string
	// Reviews, if set, asks what every authenticated user may do, which is ignored. It uses the agent's credential.
	Reviews authorizationv1client.SubjectAccessReviewInterface
}

// Excess is a permission that the credential should not have.
type Excess struct {
	What string // such as "get,list secrets in kube-system"
	Why  string // the API server's reason, which names the binding if RBAC decided; may be empty
}

// Report is the result of a check.
type Report struct {
	Excess []Excess
	// Incomplete is true if the API server could not list all rules, as with an authorization webhook. Then only the
	// most dangerous permissions of the rest were checked, one by one.
	Incomplete bool
}

// String summarizes the excess in one sentence, with the bindings that grant it. It is "" if there is none.
func (r Report) String() string {
	if len(r.Excess) == 0 {
		return ""
	}
	var reasons []string
	by := map[string][]string{}
	for _, one := range r.Excess {
		if !slices.Contains(reasons, one.Why) {
			reasons = append(reasons, one.Why)
		}
		by[one.Why] = append(by[one.Why], one.What)
	}
	const most = 3
	texts := make([]string, 0, len(reasons))
	for _, reason := range reasons {
		what := by[reason]
		text := strings.Join(what[:min(len(what), most)], "; ")
		if len(what) > most {
			text += fmt.Sprintf(" and %d more", len(what)-most)
		}
		if reason != "" {
			text += " (" + reason + ")"
		}
		texts = append(texts, text)
	}
	if len(texts) > most {
		texts = append(texts[:most], fmt.Sprintf("%d more", len(texts)-most))
	}
	return strings.Join(texts, "; ")
}

// Check asks the API server with the credential in config. It returns an error if the permissions are unknown.
func (c *Checker) Check(ctx context.Context, config *rest.Config) (Report, error) {
	client, err := authorizationv1client.NewForConfig(config)
	if err != nil {
		return Report{}, fmt.Errorf("creating a client for access reviews: %w", err)
	}
	check := &check{Checker: c, client: client, known: map[string]bool{}}
	for _, namespace := range c.Namespaces {
		if err := check.rules(ctx, namespace); err != nil {
			return Report{}, err
		}
	}
	if err := check.questions(ctx); err != nil {
		return Report{}, err
	}
	return check.report, nil
}

// check is one run of a Checker.
type check struct {
	*Checker
	client authorizationv1client.AuthorizationV1Interface
	report Report
	known  map[string]bool // excessive rules so far; each namespace lists the cluster-wide ones again
}

// rules checks all rules that the API server can list.
func (c *check) rules(ctx context.Context, namespace string) error {
	review, err := c.client.SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("listing the rules in namespace %q: %w", namespace, err)
	}
	c.report.Incomplete = c.report.Incomplete || review.Status.Incomplete
	for _, rule := range review.Status.ResourceRules {
		if !c.excessive(rule) {
			continue
		}
		if err := c.rule(ctx, describe(rule, ""), describe(rule, namespace), allOf(rule, namespace),
			sample(rule, namespace)); err != nil {
			return err
		}
	}
	for _, rule := range review.Status.NonResourceRules {
		paths := excessivePaths(rule)
		if len(paths) == 0 || len(rule.Verbs) == 0 {
			continue
		}
		what := strings.Join(rule.Verbs, ",") + " " + short(paths)
		if err := c.rule(ctx, what, what, allPaths(rule.Verbs, paths),
			pathQuestion(rule.Verbs[0], strings.TrimSuffix(paths[0], "*"))); err != nil {
			return err
		}
	}
	return nil
}

// rule records an excessive rule, unless it is known or open to all. The response to sample names the binding.
func (c *check) rule(
	ctx context.Context, key, what string, all []authorizationv1.SelfSubjectAccessReviewSpec,
	sample authorizationv1.SelfSubjectAccessReviewSpec,
) error {
	if c.known[key] {
		return nil
	}
	if open, err := c.openToAll(ctx, all); err != nil || open {
		return err
	}
	c.known[key] = true
	return c.ask(ctx, what, true, sample)
}

// sample returns a review that rule permits. The response names the binding.
func sample(rule authorizationv1.ResourceRule, namespace string) authorizationv1.SelfSubjectAccessReviewSpec {
	first := func(some []string) string {
		if len(some) == 0 {
			return ""
		}
		return some[0]
	}
	return question(namespace, first(rule.Verbs), first(rule.APIGroups), first(rule.Resources), first(rule.ResourceNames))
}

// question returns a review for one permission. The resource may have a subresource after a slash.
func question(namespace, verb, group, resource, name string) authorizationv1.SelfSubjectAccessReviewSpec {
	resource, subresource, _ := strings.Cut(resource, "/")
	return authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource, Name: name,
	}}
}

// pathQuestion is question for a non-resource path.
func pathQuestion(verb, path string) authorizationv1.SelfSubjectAccessReviewSpec {
	return authorizationv1.SelfSubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb},
	}
}

// questions asks for the most dangerous permissions one by one. It also works with authorizers that cannot list rules.
func (c *check) questions(ctx context.Context) error {
	if len(c.report.Excess) > 0 && !c.report.Incomplete {
		return nil // the rules have shown it
	}
	worst := []authorizationv1.SelfSubjectAccessReviewSpec{
		question("", "*", "*", "*", ""),
		question("", "list", "", "secrets", ""),
		question("", "escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
	}
	for _, namespace := range c.Namespaces {
		worst = append(worst,
			question(namespace, "get", "", "secrets", ""), question(namespace, "list", "", "secrets", ""),
			question(namespace, "create", "", "pods", ""), question(namespace, "create", "", "serviceaccounts/token", ""))
	}
	for _, one := range worst {
		asked := one.ResourceAttributes
		what := asked.Verb + " " + asked.Resource
		if asked.Subresource != "" {
			what += "/" + asked.Subresource
		}
		if asked.Group != "" {
			what += "." + asked.Group
		}
		if asked.Namespace != "" {
			what += " in " + asked.Namespace
		}
		if err := c.ask(ctx, what, false, one); err != nil {
			return err
		}
	}
	return nil
}

// ask records an excess if the credential has this permission. If certain is true, the excess is known, and the review
// only provides the reason.
func (c *check) ask(
	ctx context.Context, what string, certain bool, spec authorizationv1.SelfSubjectAccessReviewSpec,
) error {
	if len(c.report.Excess) >= maxExcess {
		return nil
	}
	review, err := c.client.SelfSubjectAccessReviews().
		Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("checking access to %s: %w", what, err)
	}
	if review.Status.Allowed && !certain {
		open, err := c.openToAll(ctx, []authorizationv1.SelfSubjectAccessReviewSpec{spec})
		if err != nil || open {
			return err
		}
	}
	if review.Status.Allowed || certain {
		why := logs.Truncate(review.Status.Reason, maxReason)
		c.report.Excess = append(c.report.Excess, Excess{What: what, Why: why})
	}
	return nil
}
