package session

import (
	"fmt"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// AppName returns the name of the application, after which the agent's objects and the CredentialIssuer are named.
func AppName(issuer *configv1alpha1.CredentialIssuer) string { return AppNameOf(issuer.Name) }

// AppNameOf returns the name of the application whose CredentialIssuer has this name.
func AppNameOf(issuer string) string {
	if app, ok := strings.CutSuffix(issuer, "-config"); ok {
		return app
	}
	return DefaultAppName
}

// lastGoodSuffix ends the name of the Secret in which the agent keeps a copy of the external certificate in service.
const lastGoodSuffix = "-impersonation-proxy-last-good-certificate"

// Fits says whether the request can be meant for this CredentialIssuer.
func Fits(r plan.Request, issuer *configv1alpha1.CredentialIssuer) error {
	if name := r.SecretName(); name.Namespace == r.Namespace && name.Name == AppName(issuer)+lastGoodSuffix {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --secret: Secret %q is the copy that the agent itself keeps, and removes", name)),
			"name the Secret that the certificate comes from")
	}
	if kind := plan.ServiceType(issuer.Spec.ImpersonationProxy); r.LoadBalancerIP != nil && kind != configv1alpha1.ServiceTypeLoadBalancer {
		return ui.Usage(fmt.Errorf("--load-balancer-ip needs a Service of type LoadBalancer, but CredentialIssuer %q has type %s", issuer.Name, kind))
	}
	return nil
}
