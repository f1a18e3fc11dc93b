package identity

import (
	"crypto/sha256"
	"fmt"
	"slices"

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
// encoding is needed for all three. It is done for each request, so it takes little from the heap.
func newQuestion(attributes authorizer.Attributes) (*question, error) {
	q := &question{spec: reviewSpec(attributes), verb: attributes.GetVerb()}
	about := q.spec.ResourceAttributes
	if about == nil {
		var err error
		q.key, err = specKey('p', &q.spec)
		q.allNames, q.everywhere = q.key, q.key
		return q, err
	}
	widest := q.spec
	widest.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Verb:        about.Verb,
		Group:       about.Group,
		Version:     about.Version,
		Resource:    about.Resource,
		Subresource: about.Subresource,
	}
	var err error
	if q.everywhere, err = specKey('r', &widest); err != nil {
		return nil, err
	}
	q.allNames = q.everywhere
	if about.Namespace != "" {
		q.allNames = partKey('s', &q.everywhere, about.Namespace)
	}
	switch {
	case about.FieldSelector != nil || about.LabelSelector != nil:
		selected := authorizationv1.ResourceAttributes{
			Name: about.Name, FieldSelector: about.FieldSelector, LabelSelector: about.LabelSelector,
		}
		encoded, err := selected.Marshal()
		if err != nil {
			return nil, fmt.Errorf("encoding the access review: %w", err)
		}
		q.key = partKey('l', &q.allNames, string(encoded))
	case about.Name != "":
		q.key = partKey('n', &q.allNames, about.Name)
	default:
		q.key = q.allNames
	}
	return q, nil
}

// onStack is how long a part of a question may be to be hashed without memory from the heap.
const onStack = 512

// partKey hashes a part of a question, and the key of the wider question that it is a part of. The kind keeps the keys
// of different parts apart.
func partKey(kind byte, of *questionKey, part string) questionKey {
	var fixed [onStack]byte
	return sha256.Sum256(append(append(append(fixed[:0], kind), of[:]...), part...))
}

// specKey hashes a question that is no part of another one.
func specKey(kind byte, spec *authorizationv1.SubjectAccessReviewSpec) (questionKey, error) {
	var fixed [onStack]byte
	text, size := append(fixed[:0], kind), spec.Size()
	text = slices.Grow(text, size)[:1+size]
	if _, err := spec.MarshalToSizedBuffer(text[1:]); err != nil {
		return questionKey{}, fmt.Errorf("encoding the access review: %w", err)
	}
	return sha256.Sum256(text), nil
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
