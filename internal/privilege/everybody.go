package privilege

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
