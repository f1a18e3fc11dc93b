package identity

import (
	"crypto/sha256"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// question is what a SubjectAccessReview asks.
type question struct {
	spec authorizationv1.SubjectAccessReviewSpec
	verb string
	// keys are that of the question, then those of the wider ones of which it is a part: about all objects of the resource
	// in the namespace, and in all namespaces.
	keys []questionKey
	// mayWiden is true when a yes to a wider question may stand for a yes to this one.
	mayWiden bool
}

// newQuestion returns what is asked about the attributes. The keys are made one from the other, so that users with many
// groups are encoded once.
func newQuestion(attributes authorizer.Attributes) (*question, error) {
	q := &question{spec: reviewSpec(attributes), verb: attributes.GetVerb()}
	widest, about := q.spec, q.spec.ResourceAttributes
	if about != nil {
		widest = widened(q.spec, true)
	}
	if err := q.narrow('w', &widest); err != nil || about == nil {
		return q, err
	}
	if about.Namespace != "" {
		if err := q.narrow('n', &authorizationv1.ResourceAttributes{Namespace: about.Namespace}); err != nil {
			return q, err
		}
	}
	if about.Name == "" && about.FieldSelector == nil && about.LabelSelector == nil {
		return q, nil
	}
	return q, q.narrow('s', &authorizationv1.ResourceAttributes{
		Name: about.Name, FieldSelector: about.FieldSelector, LabelSelector: about.LabelSelector,
	})
}

// narrow puts the key of a part of the first question before it. The kind keeps the keys of different parts apart.
func (q *question) narrow(kind byte, part interface{ Marshal() ([]byte, error) }) error {
	encoded, err := part.Marshal()
	if err != nil {
		return fmt.Errorf("encoding the access review: %w", err)
	}
	text := []byte{kind}
	if len(q.keys) > 0 {
		text = append(text, q.keys[0][:]...)
	}
	q.keys = slices.Insert(q.keys, 0, sha256.Sum256(append(text, encoded...)))
	return nil
}

// wider returns the question of the key i.
func (q *question) wider(i int) *question {
	return &question{spec: widened(q.spec, i == len(q.keys)-1), verb: q.verb, keys: q.keys[i:], mayWiden: true}
}

// widened asks what spec asks, about all objects in the namespace, or everywhere. A selector only narrows what is asked
// for, so it goes with the name.
func widened(spec authorizationv1.SubjectAccessReviewSpec, everywhere bool) authorizationv1.SubjectAccessReviewSpec {
	about := *spec.ResourceAttributes
	about.Name, about.FieldSelector, about.LabelSelector = "", nil, nil
	if everywhere {
		about.Namespace = ""
	}
	spec.ResourceAttributes = &about
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
