// Package apis contains the Kubernetes API of the product: Pinniped's Concierge API groups, at version v1alpha1.
//
// The four groups are config.concierge, authentication.concierge, login.concierge and identity.concierge, each
// followed by an API group suffix, by default DefaultGroupSuffix. NewScheme returns a scheme for one suffix.
package apis

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
)

// DefaultGroupSuffix is the default suffix of every API group.
const DefaultGroupSuffix = "pinniped.dev"

// Version is the only served version of all groups.
const Version = "v1alpha1"

// Groups are the four API groups with one suffix.
type Groups struct {
	Config         schema.GroupVersion // CredentialIssuer
	Authentication schema.GroupVersion // WebhookAuthenticator, JWTAuthenticator
	Login          schema.GroupVersion // TokenCredentialRequest (aggregated)
	Identity       schema.GroupVersion // WhoAmIRequest (aggregated)
}

// GroupsFor returns the API groups with this suffix. It does not validate the suffix: see ValidateGroupSuffix.
func GroupsFor(suffix string) Groups {
	group := func(name string) schema.GroupVersion {
		return schema.GroupVersion{Group: name + ".concierge." + suffix, Version: Version}
	}
	return Groups{
		Config:         group("config"),
		Authentication: group("authentication"),
		Login:          group("login"),
		Identity:       group("identity"),
	}
}

// ValidateGroupSuffix returns an error unless suffix is a DNS-1123 subdomain with at least one dot.
func ValidateGroupSuffix(suffix string) error {
	if !strings.Contains(suffix, ".") {
		return fmt.Errorf("%q must contain '.'", suffix)
	}
	if problems := validation.IsDNS1123Subdomain(suffix); len(problems) > 0 {
		return fmt.Errorf("%q: %w", suffix, errors.New(strings.Join(problems, ", ")))
	}
	return nil
}

// AddToScheme registers the kinds of all four groups with this suffix.
func AddToScheme(scheme *runtime.Scheme, suffix string) {
	groups := GroupsFor(suffix)
	scheme.AddKnownTypes(groups.Config,
		&configv1alpha1.CredentialIssuer{}, &configv1alpha1.CredentialIssuerList{})
	scheme.AddKnownTypes(groups.Authentication,
		&authenticationv1alpha1.WebhookAuthenticator{}, &authenticationv1alpha1.WebhookAuthenticatorList{},
		&authenticationv1alpha1.JWTAuthenticator{}, &authenticationv1alpha1.JWTAuthenticatorList{})
	scheme.AddKnownTypes(groups.Login,
		&loginv1alpha1.TokenCredentialRequest{}, &loginv1alpha1.TokenCredentialRequestList{})
	scheme.AddKnownTypes(groups.Identity,
		&identityv1alpha1.WhoAmIRequest{}, &identityv1alpha1.WhoAmIRequestList{})
	for _, gv := range []schema.GroupVersion{groups.Config, groups.Authentication, groups.Login, groups.Identity} {
		metav1.AddToGroupVersion(scheme, gv)
	}
}

// NewScheme returns a scheme with the kinds of the four groups with this suffix, and nothing else.
func NewScheme(suffix string) *runtime.Scheme {
	scheme := runtime.NewScheme()
	AddToScheme(scheme, suffix)
	return scheme
}
