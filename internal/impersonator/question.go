package impersonator

import (
	"crypto/sha256"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// questionKey tells questions apart: two have the same key only if they ask the same.
type questionKey [sha256.Size]byte

// question is what a SubjectAccessReview asks.
type question struct {
	spec authorizationv1.SubjectAccessReviewSpec
	verb string
	key  questionKey
	// allNames is the key of the same question about all objects of the resource in the namespace, and everywhere the key
	// of the one about all objects in all namespaces. Each is equal to key when the question asks for that much itself.
	allNames, everywhere questionKey
	// mayWiden is true when a yes to a wider question may stand for a yes to this one.
	mayWiden bool
}

// newQuestion returns what is asked about the attributes. The keys are made one from the other, so that only one
// encoding is needed for all three.
func newQuestion(attributes authorizer.Attributes) (*question, error) {
	q := &question{spec: reviewSpec(attributes), verb: attributes.GetVerb()}
	if q.spec.ResourceAttributes == nil {
		encoded, err := q.spec.Marshal()
		if err != nil {
			return nil, fmt.Errorf("encoding the access review: %w", err)
		}
		q.key = partKey('p', nil, encoded)
		q.allNames, q.everywhere = q.key, q.key
		return q, nil
	}
	wide := everywhere(q.spec)
	encoded, err := wide.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding the access review: %w", err)
	}
	q.everywhere = partKey('r', nil, encoded)
	about := q.spec.ResourceAttributes
	q.allNames = q.everywhere
	if about.Namespace != "" {
		q.allNames = partKey('s', &q.everywhere, []byte(about.Namespace))
	}
	q.key = q.allNames
	if about.Name != "" || about.FieldSelector != nil || about.LabelSelector != nil {
		narrow := authorizationv1.ResourceAttributes{
			Name: about.Name, FieldSelector: about.FieldSelector, LabelSelector: about.LabelSelector,
		}
		encoded, err := narrow.Marshal()
		if err != nil {
			return nil, fmt.Errorf("encoding the access review: %w", err)
		}
		q.key = partKey('n', &q.allNames, encoded)
	}
	return q, nil
}

// partKey hashes a part of a question, and the key of the wider question that it is a part of. The kind keeps the keys of
// different parts apart.
func partKey(kind byte, of *questionKey, part []byte) questionKey {
	text := make([]byte, 0, 1+len(of)+len(part))
	text = append(text, kind)
	if of != nil {
		text = append(text, of[:]...)
	}
	return sha256.Sum256(append(text, part...))
}

// allNames asks what spec asks, about all objects in the namespace. A selector only narrows what is asked for, so it
// goes as well.
func allNames(spec authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewSpec {
	wide := *spec.ResourceAttributes
	wide.Name, wide.FieldSelector, wide.LabelSelector = "", nil, nil
	spec.ResourceAttributes = &wide
	return spec
}

// everywhere asks what spec asks, about all objects in all namespaces.
func everywhere(spec authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewSpec {
	spec = allNames(spec)
	spec.ResourceAttributes.Namespace = ""
	return spec
}

// mayWiden is true when the API server authorizes the very request once more, as the same user, so that a yes to a wider
// question lets nothing through that the API server would refuse. It is not true of impersonation: about the user whom
// the request is to act as, the proxy is the only one to ask. It is not said of connections into pods and nodes either,
// for which an old API server asks less than the proxy does (see alsoNeeded), nor of anonymous users, who may do little.
func mayWiden(attributes authorizer.Attributes) bool {
	if !attributes.IsResourceRequest() || attributes.GetUser().GetName() == user.Anonymous {
		return false
	}
	switch attributes.GetSubresource() {
	case "exec", "attach", "portforward", "proxy":
		return false
	}
	switch attributes.GetVerb() {
	case "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}
