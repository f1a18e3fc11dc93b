package delegation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// verdict is the result of a query.
type verdict struct {
	outcome Outcome
	// certain is false for a refusal that an API server may give by mistake after it has just started.
	certain bool
}

// query finds out whether the Secret may be used: first whether it is delegated, then whether RBAC permits it.
func (e *polled) query(ctx context.Context) (verdict, error) {
	list, err := e.get(ctx, "/apis/"+Group+"/"+Version+"/namespaces/"+e.secret.Namespace+"/"+Plural)
	switch {
	case apierrors.IsNotFound(err):
		return verdict{outcome: NoDelegations}, nil
	case apierrors.IsForbidden(err):
		return verdict{outcome: NotVisible}, nil
	case err != nil:
		return verdict{}, fmt.Errorf("listing %ss in namespace %q: %w", Kind, e.secret.Namespace, err)
	}
	all, err := ParseList(list)
	if err != nil {
		return verdict{}, err
	}
	if !Decide(e.secret, e.options.Namespace, all).Permitted {
		return verdict{outcome: NotDelegated, certain: true}, nil
	}
	// The agent lists and watches the Secret by name.
	for _, verb := range []string{"list", "watch"} {
		allowed, err := e.allowed(ctx, verb)
		if apierrors.IsForbidden(err) {
			return verdict{outcome: NotVisible}, nil
		}
		if err != nil {
			return verdict{}, err
		}
		if !allowed {
			return verdict{outcome: NotReadable}, nil
		}
	}
	return verdict{outcome: Permitted, certain: true}, nil
}

// confirmed reports whether to believe a refusal that is not certain. An API server that has just started responds
// before it has loaded RBAC and CustomResourceDefinitions, and refuses what it permits a moment later. So a refusal is
// believed if the API server is ready and refuses again.
//
// If the agent lacks permission for /readyz, a refusal is believed if it lasts for doubtLimit, or doubtLimitOnceReady
// if the API server permitted /readyz before.
func (e *polled) confirmed(ctx context.Context, refusal verdict) bool {
	if e.doubtSince.IsZero() {
		e.doubtSince = e.options.Clock.Now()
	}
	err := e.ready(ctx)
	switch {
	case err == nil:
		again, err := e.query(ctx)
		return err == nil && again == refusal
	case notForUs(err):
		limit := doubtLimit
		if e.readiness == responded {
			limit = doubtLimitOnceReady
		}
		return e.options.Clock.Since(e.doubtSince) >= limit
	default:
		return false
	}
}

// readiness is the result of the requests for /readyz.
type readiness int

const (
	unasked readiness = iota // or no response
	responded
	refused // every time so far
)

func notForUs(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}

// ready returns nil if the API server is ready.
func (e *polled) ready(ctx context.Context) error {
	_, err := e.get(ctx, "/readyz")
	switch {
	case err == nil:
		e.readiness = responded
	case e.readiness == unasked && notForUs(err):
		e.readiness = refused
	}
	return err
}

func (e *polled) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return e.options.Client.Get().AbsPath(path).SetHeader("Accept", "application/json, */*").MaxRetries(0).Do(ctx).Raw()
}

// allowed asks whether the agent is authorized for this verb on the Secret.
func (e *polled) allowed(ctx context.Context, verb string) (bool, error) {
	review := authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: e.secret.Namespace, Verb: verb, Resource: "secrets", Name: e.secret.Name,
		}},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return false, fmt.Errorf("encoding a review: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	raw, err := e.options.Client.Verb(http.MethodPost).AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
		SetHeader("Accept", "application/json").
		SetHeader("Content-Type", "application/json").MaxRetries(0).Body(body).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(raw, &review)
	}
	if err != nil {
		return false, fmt.Errorf("checking if the agent may %s Secret %q: %w", verb, e.secret, err)
	}
	return review.Status.Allowed, nil
}
