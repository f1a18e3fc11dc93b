package agent

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/satoken"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// newUserTokens sets up the strategy ServiceAccountToken. It sends no requests until the CredentialIssuer enables it.
func (a *agent) newUserTokens() (*satoken.Backend, error) {
	own := a.config.ownNames()
	manager, err := satoken.ManagerClient(a.rest, a.options.Namespace, own.userAccountsServiceAccount)
	if err != nil {
		return nil, err
	}
	reviewer, err := kubernetes.NewForConfig(a.rest)
	if err != nil {
		return nil, fmt.Errorf("creating a client for access reviews: %w", err)
	}
	issuers, err := a.groupClient(a.groups.Config, a.scheme)
	if err != nil {
		return nil, err
	}
	return satoken.NewBackend(satoken.BackendOptions{
		Manager:   manager,
		Reviewer:  reviewer,
		Namespace: own.userAccountsNamespace,
		Server:    a.rest,
		Info:      a.apiServerInfo(reviewer.CoreV1()),
		IsLeader:  func() bool { return a.leader.Leading() },
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
		core, err := corev1client.NewForConfig(a.rest)
		if err != nil {
			return // it is also read regularly
		}
		go signer.FollowClusterInfo(ctx, core, func() {
			if a.clusterSigner != nil {
				a.clusterSigner.Retest()
			}
			a.userTokens.Wake()
		})
	})
}

// apiServerInfo returns how clients reach the API server: from the configuration, else from cluster-info, else, on
// clusters without it, as the agent reaches it. The CLI uses the address in the administrator's kubeconfig.
func (a *agent) apiServerInfo(
	core corev1client.ConfigMapsGetter,
) func(context.Context) (server string, caBundle []byte, err error) {
	return func(ctx context.Context) (string, []byte, error) {
		a.followClusterInfo(ctx)
		server, caBundle, err := signer.ClusterInfo(ctx, core, a.config.Discovery.URL)
		if err == nil {
			return server, caBundle, nil
		}
		own := rest.CopyConfig(a.rest)
		if loadErr := rest.LoadTLSFiles(own); loadErr != nil {
			return "", nil, fmt.Errorf("%w; reading the agent's own CA bundle: %w", err, loadErr)
		}
		server = own.Host
		if a.config.Discovery.URL != "" {
			server = a.config.Discovery.URL
		}
		return server, own.CAData, nil
	}
}
