// Package advertised reads from a cluster, as an administrator, where its impersonation proxy is and with which CA
// bundle clients verify it.
package advertised

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/endpoint"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Discoverer reads objects of a cluster.
type Discoverer interface {
	CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error)
	Service(ctx context.Context, namespace, name string) (*corev1.Service, error)
	AgentNamespace(ctx context.Context) (string, error)
}

// Resolver returns the addresses of a host.
type Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

// Target returns the proxy under all of its names and the CA bundle that is advertised. An empty issuer stands for the
// only CredentialIssuer. The warnings tell of names that could not be found out.
func Target(
	ctx context.Context,
	client Discoverer,
	issuer string,
	resolve Resolver,
) (target kubeconfig.Target, warnings []string, err error) {
	found, frontend, err := Frontend(ctx, client, issuer)
	if err != nil {
		return target, nil, err
	}
	target.CABundle = frontend.CABundle
	target.Endpoint, warnings, err = Names(ctx, client, found, frontend.Endpoint, resolve)
	if frontend.Trouble != "" {
		warnings = append(warnings, "the configuration of the impersonation proxy is not in effect; this is about what "+
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

// Frontend returns the CredentialIssuer and what it advertises for the impersonation proxy.
func Frontend(
	ctx context.Context,
	client Discoverer,
	name string,
) (*configv1alpha1.CredentialIssuer, *discovery.Frontend, error) {
	issuer, err := client.CredentialIssuer(ctx, name)
	if err != nil {
		return nil, nil, fmt.Errorf("finding the CredentialIssuer: %w", err)
	}
	frontend, err := discovery.ChooseStrategy(issuer, configv1alpha1.FrontendImpersonationProxy)
	if err != nil {
		return nil, nil, err
	}
	return issuer, frontend, nil
}

// Names returns the endpoint at url under all of its names.
func Names(
	ctx context.Context,
	client Discoverer,
	issuer *configv1alpha1.CredentialIssuer,
	url string,
	resolve Resolver,
) (kubeconfig.Endpoint, []string, error) {
	var warnings []string
	service, missing, err := discovery.FindService(ctx, client, issuer, "")
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		warnings = append(warnings, fmt.Sprintf(
			"reading the Service in front of the impersonation proxy: %v; kubeconfigs that use one of its addresses are not found",
			err,
		))
	case err != nil:
		return kubeconfig.Endpoint{}, nil, fmt.Errorf("reading the Service in front of the impersonation proxy: %w", err)
	case missing != "":
		warnings = append(warnings, missing+": kubeconfigs that use one of them are not found")
	}
	all := discovery.Endpoint(issuer, service, url)
	all.SameServer = endpoint.SameServer(ctx, resolve, url)
	return all, warnings, nil
}
