package agent

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/satoken"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// newUserTokens sets up the strategy ServiceAccountToken. It sends no requests until the CredentialIssuer enables it.
func (a *agent) newUserTokens() (*satoken.Backend, error) {
	manager, err := satoken.ManagerClient(
		a.rest, a.kube.CoreV1().ServiceAccounts(a.options.Namespace), a.config.AppName+"-user-accounts")
	if err != nil {
		return nil, err
	}
	issuers, err := a.groupClient(a.groups.Config, a.scheme)
	if err != nil {
		return nil, err
	}
	return satoken.NewBackend(satoken.BackendOptions{
		Manager:   manager,
		Reviewer:  a.kube,
		Namespace: a.config.AppName + "-users",
		Server:    a.rest,
		Info:      a.apiServerInfo,
		IsLeader:  a.leader.Leading,
		StillOff: func(ctx context.Context) (bool, error) {
			issuer := &configv1alpha1.CredentialIssuer{}
			name := a.config.Names.CredentialIssuer
			if err := issuers.Get().Resource("credentialissuers").Name(name).Do(ctx).Into(issuer); err != nil {
				return false, fmt.Errorf("reading CredentialIssuer %q: %w", name, err)
			}
			tokens := issuer.Spec.ServiceAccountTokens
			return tokens == nil || tokens.Mode != configv1alpha1.ServiceAccountTokensModeEnabled, nil
		},
		Changed: a.triggers.fireAll,
	}), nil
}

// followClusterInfo watches the cluster-info ConfigMap, from the first call on. A change makes its users read it again.
func (a *agent) followClusterInfo(ctx context.Context) {
	a.following.Do(func() {
		go signer.FollowClusterInfo(ctx, a.kube.CoreV1(), func() {
			if a.clusterSigner != nil {
				a.clusterSigner.Retest()
			}
			a.userTokens.Wake()
		})
	})
}

// apiServerInfo returns how clients reach the API server: from the configuration, else from cluster-info, else, on
// clusters without it, as the agent reaches it. The CLI uses the address in the administrator's kubeconfig.
func (a *agent) apiServerInfo(ctx context.Context) (server string, caBundle []byte, err error) {
	a.followClusterInfo(ctx)
	server, caBundle, err = signer.ClusterInfo(ctx, a.kube.CoreV1(), a.config.Discovery.URL)
	if err == nil {
		return server, caBundle, nil
	}
	own := rest.CopyConfig(a.rest)
	if loadErr := rest.LoadTLSFiles(own); loadErr != nil {
		return "", nil, fmt.Errorf("%w; reading the agent's own CA bundle: %w", err, loadErr)
	}
	return cmp.Or(a.config.Discovery.URL, own.Host), own.CAData, nil
}
