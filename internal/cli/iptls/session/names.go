package session

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Fits returns an error if the request does not fit this CredentialIssuer.
func Fits(r plan.Request, issuer *configv1alpha1.CredentialIssuer) error {
	objects, _ := discovery.Objects(issuer, r.Namespace)
	if name := r.SecretName(); name.Namespace == objects.Namespace && name.Name == objects.LastKnownGoodCertificateSecret {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid value for --secret: Secret %q is a backup that only the agent "+
			"writes and removes", name)),
			"name the Secret that the certificate comes from")
	}
	kind := cmp.Or(r.ServiceType, plan.ServiceType(issuer.Spec.ImpersonationProxy))
	if r.LoadBalancerIP != nil && kind != configv1alpha1.ServiceTypeLoadBalancer {
		return ui.WithHint(
			ui.Usage(fmt.Errorf("--load-balancer-ip needs a Service of type LoadBalancer, but CredentialIssuer "+
				"%q has type %s", issuer.Name, kind)),
			"add --service-type LoadBalancer",
		)
	}
	endpoint := issuer.Spec.ImpersonationProxy.ExternalEndpoint
	if r.Endpoint != nil {
		endpoint = *r.Endpoint
	}
	if r.ServiceType == configv1alpha1.ServiceTypeNone && endpoint == "" {
		return ui.WithHint(
			ui.Usage(errors.New("--service-type None needs an external endpoint, because without a Service, the agent knows "+
				"no address")),
			"name it: --external-endpoint HOST:PORT",
		)
	}
	return nil
}
