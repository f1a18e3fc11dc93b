package session

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Cluster reads and writes the cluster; *discovery.Client implements it.
type Cluster interface {
	CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error)
	ApplyCredentialIssuer(ctx context.Context, name string, object any,
		opts discovery.ApplyOptions) (*configv1alpha1.CredentialIssuer, error)
	MergeCredentialIssuer(ctx context.Context, name string, patch any,
		opts discovery.ApplyOptions) (*configv1alpha1.CredentialIssuer, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	ApplySecret(ctx context.Context, namespace, name string, object any, opts discovery.ApplyOptions) (*corev1.Secret,
		error)
	DeleteSecret(ctx context.Context, secret *corev1.Secret) error
	Certificate(ctx context.Context, namespace, name string) (*discovery.Certificate, error)
	Certificates(ctx context.Context, namespace string) ([]discovery.Certificate, error)
	Service(ctx context.Context, namespace, name string) (*corev1.Service, error)
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	ClusterTrustBundle(ctx context.Context, name string) (pem string, err error)
	ApplyConfigMap(ctx context.Context, namespace, name string, object any, opts discovery.ApplyOptions) (
		*corev1.ConfigMap, error)
	AgentNamespace(ctx context.Context) (string, error)
	TLSFields(ctx context.Context) ([]string, error)
	ReplicaLeases(ctx context.Context, namespace string) ([]discovery.ReplicaLease, error)
	Permissions
	Grants
}

// Grants creates and removes the objects of a delegation; *discovery.Client implements it.
type Grants interface {
	ApplyGrant(ctx context.Context, object map[string]any, opts discovery.ApplyOptions) error
	Grant(ctx context.Context, object map[string]any) (map[string]any, error)
	DeleteGrant(ctx context.Context, found map[string]any, dryRun bool) error
}

// Permissions finds out whether a Secret of another namespace may be used; *discovery.Client implements it.
type Permissions interface {
	Delegations(ctx context.Context, namespace string) ([]delegation.Delegation, error)
	MayReadSecret(ctx context.Context, account, secret types.NamespacedName) (bool, error)
}
