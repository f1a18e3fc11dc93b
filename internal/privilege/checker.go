// Package privilege asks the API server, with a credential itself, what that credential may do beyond impersonating
// others.
//
// The proxy's upstream credential must not be good for anything else. Then a request without impersonation headers, by
// some mistake, can do nothing. An admin who grants it more takes that safety away, perhaps without noticing: a binding
// for all service accounts is enough. What every authenticated user may do is not counted.
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
)

const (
	maxExcess = 20 // findings of one check
	maxReason = 256
)

// Checker asks about one credential. Its fields are set before use.
type Checker struct {
	// Namespaces are the namespaces whose rules are checked, in addition to those of the whole cluster.
	Namespaces []string
	// OpenGroups are the API groups in which everybody may create TokenCredentialRequests and WhoAmIRequests. They are
	// not checked.
	OpenGroups []string
	// Reviews, if set, asks what every authenticated user may do, which is no excess. It acts for the agent, not with the
	// credential that is checked.
	Reviews authorizationv1client.SubjectAccessReviewInterface
}

// Excess is something that the credential may do and should not.
type Excess struct {
	What string // such as: get,list secrets in kube-system
	Why  string // what the API server says, which names the binding when RBAC decided; may be empty
}

// Report is the outcome of one check.
type Report struct {
	Excess []Excess
	// Incomplete is true when the API server could not list all rules, as with an authorization webhook. Then only the
	// worst permissions were asked for, one by one.
	Incomplete bool
}

// String names in one sentence what the credential may do too much, and which binding permits it; "" when there is
// nothing.
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

// Check asks the API server with config's own credential. An error means that the permissions are not known.
func (c *Checker) Check(ctx context.Context, config *rest.Config) (Report, error) {
	client, err := authorizationv1client.NewForConfig(config)
	if err != nil {
		return Report{}, fmt.Errorf("creating a client for access reviews: %w", err)
	}
	check := &check{Checker: c, client: client}
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
	known  map[string]bool // rules that are an excess; those of the whole cluster are listed again in each namespace
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
		if !c.excessive(rule) || c.known[describe(rule, "")] {
			continue
		}
		if open, err := c.openToAll(ctx, allOf(rule, namespace)); err != nil || open {
			if err != nil {
				return err
			}
			continue
		}
		c.note(describe(rule, ""))
		if err := c.ask(ctx, describe(rule, namespace), true, sample(rule, namespace)); err != nil {
			return err
		}
	}
	for _, rule := range review.Status.NonResourceRules {
		paths := excessivePaths(rule)
		what := strings.Join(rule.Verbs, ",") + " " + short(paths)
		if len(paths) == 0 || len(rule.Verbs) == 0 || c.known[what] {
			continue
		}
		if open, err := c.openToAll(ctx, allPaths(rule.Verbs, paths)); err != nil || open {
			if err != nil {
				return err
			}
			continue
		}
		c.note(what)
		if err := c.ask(ctx, what, true, authorizationv1.SelfSubjectAccessReviewSpec{
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{
				Path: strings.TrimSuffix(paths[0], "*"),
				Verb: rule.Verbs[0],
			},
		}); err != nil {
			return err
		}
	}
	return nil
}

// note records an excess.
func (c *check) note(rule string) {
	if c.known == nil {
		c.known = map[string]bool{}
	}
	c.known[rule] = true
}

// sample returns a review that rule permits. The response names the binding.
func sample(rule authorizationv1.ResourceRule, namespace string) authorizationv1.SelfSubjectAccessReviewSpec {
	first := func(some []string) string {
		if len(some) == 0 {
			return ""
		}
		return some[0]
	}
	return question(
		namespace,
		first(rule.Verbs),
		first(rule.APIGroups),
		first(rule.Resources),
		first(rule.ResourceNames),
	)
}

// question asks for one permission. The resource may have a subresource after a slash.
func question(namespace, verb, group, resource, name string) authorizationv1.SelfSubjectAccessReviewSpec {
	resource, subresource, _ := strings.Cut(resource, "/")
	return authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource, Name: name,
	}}
}

// questions asks for the worst permissions one by one. It also works with authorizers that cannot list what they
// permit.
func (c *check) questions(ctx context.Context) error {
	if len(c.report.Excess) > 0 && !c.report.Incomplete {
		return nil // the rules have shown the excess
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

// ask asks whether the credential may do one thing. If it may, that is an excess. When certain is true, the excess is
// known already, and the response is only read for its reason.
func (c *check) ask(
	ctx context.Context,
	what string,
	certain bool,
	spec authorizationv1.SelfSubjectAccessReviewSpec,
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
		reason := review.Status.Reason
		if len(reason) > maxReason {
			reason = reason[:maxReason] + "..."
		}
		c.report.Excess = append(c.report.Excess, Excess{What: what, Why: reason})
	}
	return nil
}
