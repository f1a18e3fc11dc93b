package privilege

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// allAuthenticated is the group of every user who is known to the cluster.
const allAuthenticated = "system:authenticated"

// maxQuestions is how many questions are asked about one rule. A rule that permits more is not checked.
const maxQuestions = 100

// openToAll returns whether every authenticated user has the permissions of the rule. Then a request without its user
// can do no more than the user. Every installation of a product like this one grants such permissions: its login APIs
// are open to everybody.
func (c *check) openToAll(ctx context.Context, questions []authorizationv1.SelfSubjectAccessReviewSpec) (bool, error) {
	if c.Reviews == nil || len(questions) == 0 || len(questions) > maxQuestions {
		return false, nil
	}
	for _, question := range questions {
		review, err := c.Reviews.Create(
			ctx,
			&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				ResourceAttributes:    question.ResourceAttributes,
				NonResourceAttributes: question.NonResourceAttributes,
				// No user and no other group: not that of all service accounts, either.
				Groups: []string{allAuthenticated},
			}},
			metav1.CreateOptions{},
		)
		if err != nil {
			return false, fmt.Errorf("asking what every authenticated user may do: %w", err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// allOf returns one question for each combination of what rule permits.
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

// allPaths is allOf for paths that are no resources.
func allPaths(verbs, paths []string) []authorizationv1.SelfSubjectAccessReviewSpec {
	var all []authorizationv1.SelfSubjectAccessReviewSpec
	for _, verb := range verbs {
		for _, path := range paths {
			all = append(all, authorizationv1.SelfSubjectAccessReviewSpec{
				NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb},
			})
		}
	}
	return all
}
