package concierge

import (
	"context"
	"errors"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
)

// whoAmIRequests serves WhoAmIRequests.
type whoAmIRequests struct{ virtual }

var _ rest.Creater = whoAmIRequests{}

func newWhoAmIRequests() whoAmIRequests {
	return whoAmIRequests{newVirtual(
		defaultGroups.Identity.Group, "WhoAmIRequest", &identityv1alpha1.WhoAmIRequest{},
		&identityv1alpha1.WhoAmIRequestList{
			ListMeta: metav1.ListMeta{ResourceVersion: "0"}, Items: []identityv1alpha1.WhoAmIRequest{},
		},
	)}
}

// Create returns the authenticated user of the request.
func (w whoAmIRequests) Create(
	ctx context.Context,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	request, ok := obj.(*identityv1alpha1.WhoAmIRequest)
	if !ok {
		return nil, apierrors.NewBadRequest("not a WhoAmIRequest")
	}
	if err := w.refuse(ctx, request.Name, options); err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, request.DeepCopy()); err != nil {
			return nil, err
		}
	}
	caller, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("no user info on request"))
	}
	audiences, _ := authenticator.AudiencesFrom(ctx)
	return &identityv1alpha1.WhoAmIRequest{
		Status: identityv1alpha1.WhoAmIRequestStatus{
			KubernetesUserInfo: identityv1alpha1.KubernetesUserInfo{User: describe(caller), Audiences: slices.Clone(audiences)},
		},
	}, nil
}

// describe copies the user, because authenticators may share it between requests.
func describe(from user.Info) identityv1alpha1.UserInfo {
	info := identityv1alpha1.UserInfo{Username: from.GetName(), UID: from.GetUID(), Groups: slices.Clone(from.GetGroups())}
	if extra := from.GetExtra(); len(extra) > 0 {
		info.Extra = make(map[string]identityv1alpha1.ExtraValue, len(extra))
		for key, values := range maps.All(extra) {
			info.Extra[key] = slices.Clone(values)
		}
	}
	return info
}
