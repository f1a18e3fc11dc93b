package concierge

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
)

// newWireScheme returns the scheme of the served versions.
func newWireScheme(groups apis.Groups) *runtime.Scheme {
	scheme := runtime.NewScheme()
	addKinds(scheme, groups.Login, groups.Identity)
	for _, gv := range []schema.GroupVersion{groups.Login, groups.Identity, {Version: "v1"}} {
		metav1.AddToGroupVersion(scheme, gv)
	}
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"},
		&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme
}

// newServerScheme returns the scheme of the server. The API server library handles objects in an internal version and
// converts on input and output. With one version there is nothing to convert, so the same Go types are also registered
// as the internal version: a conversion then only changes the kind of the object.
func newServerScheme(groups apis.Groups) (*runtime.Scheme, error) {
	scheme := newWireScheme(groups)
	internal := func(gv schema.GroupVersion) schema.GroupVersion {
		return schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
	}
	addKinds(scheme, internal(groups.Login), internal(groups.Identity))
	// Mutating admission writes its result back with a conversion between two values of the same type.
	for _, register := range []func() error{
		func() error { return addAssignment[loginv1alpha1.TokenCredentialRequest](scheme) },
		func() error { return addAssignment[identityv1alpha1.WhoAmIRequest](scheme) },
		func() error { return scheme.SetVersionPriority(groups.Login) },
		func() error { return scheme.SetVersionPriority(groups.Identity) },
	} {
		if err := register(); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	return scheme, nil
}

func addKinds(scheme *runtime.Scheme, login, identity schema.GroupVersion) {
	scheme.AddKnownTypes(login, &loginv1alpha1.TokenCredentialRequest{}, &loginv1alpha1.TokenCredentialRequestList{})
	scheme.AddKnownTypes(identity, &identityv1alpha1.WhoAmIRequest{}, &identityv1alpha1.WhoAmIRequestList{})
}

func addAssignment[T any](scheme *runtime.Scheme) error {
	return scheme.AddConversionFunc((*T)(nil), (*T)(nil), func(from, to any, _ conversion.Scope) error {
		*to.(*T) = *from.(*T)
		return nil
	})
}
