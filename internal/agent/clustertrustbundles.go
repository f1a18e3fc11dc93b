package agent

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/informer"
)

// clusterTrustBundles reads ClusterTrustBundles (KEP-3257) in the version that the API server serves: v1 since
// Kubernetes 1.37, v1beta1 behind a feature gate since 1.33.
type clusterTrustBundles struct {
	stable *informer.ByName[*certificatesv1.ClusterTrustBundle]
	beta   *informer.ByName[*certificatesv1beta1.ClusterTrustBundle]
}

func (a *agent) newClusterTrustBundles(
	ctx context.Context, changed func(types.NamespacedName),
) (*clusterTrustBundles, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{certificatesv1.AddToScheme, certificatesv1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("setting up the types of certificates.k8s.io: %w", err)
		}
	}
	stable, err := a.groupClient(certificatesv1.SchemeGroupVersion, scheme)
	if err != nil {
		return nil, err
	}
	beta, err := a.groupClient(certificatesv1beta1.SchemeGroupVersion, scheme)
	if err != nil {
		return nil, err
	}
	const resource = "clustertrustbundles"
	return &clusterTrustBundles{
		stable: informer.New(ctx, stable, resource, &certificatesv1.ClusterTrustBundle{}, changed),
		beta:   informer.New(ctx, beta, resource, &certificatesv1beta1.ClusterTrustBundle{}, changed),
	}, nil
}

// TrustBundle implements credentialissuer.ClusterTrustBundles.
func (b *clusterTrustBundles) TrustBundle(ctx context.Context, name string) (*string, error) {
	at := types.NamespacedName{Name: name}
	stable, found, err := b.stable.Get(ctx, at)
	if err != nil {
		return nil, err
	}
	if found {
		return &stable.Spec.TrustBundle, nil
	}
	beta, found, err := b.beta.Get(ctx, at)
	if err != nil || !found {
		return nil, err
	}
	return &beta.Spec.TrustBundle, nil
}

// ForgetTrustBundles implements credentialissuer.ClusterTrustBundles.
func (b *clusterTrustBundles) ForgetTrustBundles(except string) {
	keep := func(name types.NamespacedName) bool { return name.Name == except }
	b.stable.Forget(keep)
	b.beta.Forget(keep)
}
