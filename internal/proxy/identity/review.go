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
	if requirements, _ := attributes.GetFieldSelector(); len(requirements) > 0 {
		spec.ResourceAttributes.FieldSelector = fieldSelector(requirements)
	}
	if requirements, _ := attributes.GetLabelSelector(); len(requirements) > 0 {
		spec.ResourceAttributes.LabelSelector = labelSelector(requirements)
	}
	return spec
}

// selectorOperator is "" for an operator that a review cannot express.
func selectorOperator(o selection.Operator) string {
	switch o {
	case selection.Equals, selection.DoubleEquals, selection.In:
		return string(metav1.LabelSelectorOpIn)
	case selection.NotEquals, selection.NotIn:
		return string(metav1.LabelSelectorOpNotIn)
	case selection.Exists:
		return string(metav1.LabelSelectorOpExists)
	case selection.DoesNotExist:
		return string(metav1.LabelSelectorOpDoesNotExist)
	default:
		return ""
	}
}

func fieldSelector(requirements fields.Requirements) *authorizationv1.FieldSelectorAttributes {
	var said []metav1.FieldSelectorRequirement
	for _, r := range requirements {
		if operator := metav1.FieldSelectorOperator(selectorOperator(r.Operator)); operator != "" {
			said = append(said, metav1.FieldSelectorRequirement{Key: r.Field, Operator: operator, Values: []string{r.Value}})
		}
	}
	if said == nil {
		return nil
	}
	return &authorizationv1.FieldSelectorAttributes{Requirements: said}
}

func labelSelector(requirements labels.Requirements) *authorizationv1.LabelSelectorAttributes {
	var said []metav1.LabelSelectorRequirement
	for _, r := range requirements {
		if operator := metav1.LabelSelectorOperator(selectorOperator(r.Operator())); operator != "" {
			said = append(said, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: operator, Values: r.ValuesUnsorted()})
		}
	}
	if said == nil {
		return nil
	}
	return &authorizationv1.LabelSelectorAttributes{Requirements: said}
}
