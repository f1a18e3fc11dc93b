package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Reader reads objects of a cluster.
type Reader interface {
	CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error)
	Service(ctx context.Context, namespace, name string) (*corev1.Service, error)
	AgentNamespace(ctx context.Context) (string, error)
}

// Resolver returns the addresses of a host.
type Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

// Target returns the proxy with all of its names, and the published CA bundle. An empty issuer means the only
// CredentialIssuer. The warnings list what could not be read.
func Target(
	ctx context.Context,
	client Reader,
	issuer string,
	resolve Resolver,
) (target kubeconfig.Target, warnings []string, err error) {
	found, frontend, err := ProxyFrontend(ctx, client, issuer)
	if err != nil {
		return target, nil, err
	}
	target.CABundle = frontend.CABundle
	target.Endpoint, warnings, err = EndpointNames(ctx, client, found, frontend.Endpoint, resolve)
	if frontend.Trouble != "" {
		warnings = append(warnings, "the configuration of the impersonation proxy is not in effect; this shows what "+
			"serves now: "+frontend.Trouble)
	}
	if err != nil {
		return target, warnings, err
	}
	if len(target.CABundle) > 0 {
		if _, err := kubeconfig.CountCertificates(target.CABundle); err != nil {
			return target, warnings, fmt.Errorf("checking the CA bundle: %w", err)
		}
	}
	return target, warnings, nil
}

// ProxyFrontend returns the CredentialIssuer and its frontend for the impersonation proxy.
func ProxyFrontend(
	ctx context.Context,
	client Reader,
	name string,
) (*configv1alpha1.CredentialIssuer, *Frontend, error) {
	issuer, err := client.CredentialIssuer(ctx, name)
	if err != nil {
		return nil, nil, fmt.Errorf("finding the CredentialIssuer: %w", err)
	}
	frontend, err := ChooseStrategy(issuer, configv1alpha1.FrontendImpersonationProxy)
	if err != nil {
		return nil, nil, err
	}
	return issuer, frontend, nil
}

// EndpointNames returns the endpoint at url with all of its names.
func EndpointNames(
	ctx context.Context,
	client Reader,
	issuer *configv1alpha1.CredentialIssuer,
	url string,
	resolve Resolver,
) (kubeconfig.Endpoint, []string, error) {
	var warnings []string
	service, missing, err := FindService(ctx, client, issuer, "")
	switch {
	case errors.Is(err, ErrForbidden):
		warnings = append(warnings, fmt.Sprintf(
			"reading the Service in front of the impersonation proxy: %v; kubeconfigs that use one of its addresses are not found",
			err,
		))
	case err != nil:
		return kubeconfig.Endpoint{}, nil, fmt.Errorf("reading the Service in front of the impersonation proxy: %w", err)
	case missing != "":
		warnings = append(warnings, missing+": kubeconfigs that use one of them are not found")
	}
	all := Endpoint(issuer, service, url)
	all.SameServer = SameServer(ctx, resolve, url)
	return all, warnings, nil
}
