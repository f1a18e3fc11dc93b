package identity

import (
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// reviewSpec says in a SubjectAccessReview what the attributes say.
func reviewSpec(attributes authorizer.Attributes) authorizationv1.SubjectAccessReviewSpec {
	who := attributes.GetUser()
	spec := authorizationv1.SubjectAccessReviewSpec{User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
	if extra := who.GetExtra(); len(extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(extra))
		for key, values := range extra {
			spec.Extra[key] = values
		}
	}
	if !attributes.IsResourceRequest() {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{
			Path: attributes.GetPath(),
			Verb: attributes.GetVerb(),
		}
		return spec
	}
	spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace:   attributes.GetNamespace(),
		Verb:        attributes.GetVerb(),
		Group:       attributes.GetAPIGroup(),
		Version:     attributes.GetAPIVersion(),
		Resource:    attributes.GetResource(),
		Subresource: attributes.GetSubresource(),
		Name:        attributes.GetName(),
	}
	// A selector only narrows what is asked for. A requirement that cannot be expressed is left out: the question then
	// is for more, never for less.
	if fieldRequirements, _ := attributes.GetFieldSelector(); len(fieldRequirements) > 0 {
		if said := fieldSelector(fieldRequirements); len(said) > 0 {
			spec.ResourceAttributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: said}
		}
	}
	if labelRequirements, _ := attributes.GetLabelSelector(); len(labelRequirements) > 0 {
		if said := labelSelector(labelRequirements); len(said) > 0 {
			spec.ResourceAttributes.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: said}
		}
	}
	return spec
}

func fieldSelector(requirements fields.Requirements) []metav1.FieldSelectorRequirement {
	var said []metav1.FieldSelectorRequirement
	for _, r := range requirements {
		one := metav1.FieldSelectorRequirement{Key: r.Field, Values: []string{r.Value}}
		switch r.Operator {
		case selection.Equals, selection.DoubleEquals, selection.In:
			one.Operator = metav1.FieldSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			one.Operator = metav1.FieldSelectorOpNotIn
		default:
			continue
		}
		said = append(said, one)
	}
	return said
}

func labelSelector(requirements labels.Requirements) []metav1.LabelSelectorRequirement {
	var said []metav1.LabelSelectorRequirement
	for _, r := range requirements {
		one := metav1.LabelSelectorRequirement{Key: r.Key()}
		if values := r.ValuesUnsorted(); len(values) > 0 {
			one.Values = values
		}
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			one.Operator = metav1.LabelSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			one.Operator = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			one.Operator = metav1.LabelSelectorOpExists
		case selection.DoesNotExist:
			one.Operator = metav1.LabelSelectorOpDoesNotExist
		default:
			continue
		}
		said = append(said, one)
	}
	return said
}
