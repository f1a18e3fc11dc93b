package devcluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	fieldManager  = "devcluster"
	tokenLifetime = 24 * time.Hour
)

// makeClients creates the admin's clients. None of them connects yet.
func (c *Cluster) makeClients() error {
	c.admin = c.withCertificate(c.pki.admin)
	var err error
	if c.dynamic, err = dynamic.NewForConfig(c.admin); err != nil {
		return fmt.Errorf("making the admin's client: %w", err)
	}
	c.probeAPI, err = newProber(c.URL(), c.pki.serving.CertPEM(), c.pki.admin)
	return err
}

// AdminConfig returns a client configuration for a user with all permissions (group system:masters). Like all
// configurations of a Cluster, it has no client-side rate limit, and is the caller's own copy.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// AdminKubeconfig returns the path of a kubeconfig for the same user. It contains the CA bundle and the client
// certificate, so it works in every directory.
func (c *Cluster) AdminKubeconfig() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// User returns a client configuration for a user with a client certificate of ClientCA. RBAC determines the
// permissions.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, error) {
	pair, err := c.pki.client.IssueClient(
		certs.ClientIdentity{Username: name, Groups: groups},
		time.Now(),
		certificateLifetime,
	)
	if err != nil {
		return nil, fmt.Errorf("issuing a client certificate for user %q: %w", name, err)
	}
	return c.withCertificate(pair), nil
}

// ServiceAccountConfig returns a client configuration with a token of an existing service account, valid for a day.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1",
		"kind":       "TokenRequest",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"expirationSeconds": int64(tokenLifetime / time.Second)},
	}}
	accounts := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).
		Namespace(namespace)
	answer, err := accounts.Create(ctx, request, metav1.CreateOptions{FieldManager: fieldManager}, "token")
	if err != nil {
		return nil, fmt.Errorf("requesting a token for service account %q: %w", namespace+"/"+name, err)
	}
	token, _, err := unstructured.NestedString(answer.Object, "status", "token")
	if err != nil || token == "" {
		return nil, fmt.Errorf("requesting a token for service account %q: %w", namespace+"/"+name,
			errors.Join(errors.New("no token in the response"), err))
	}
	config := c.anonymous()
	config.BearerToken = token
	return config, nil
}

func (c *Cluster) withCertificate(pair *certs.KeyPair) *rest.Config {
	config := c.anonymous()
	config.CertData, config.KeyData = pair.CertPEM, pair.KeyPEM
	return config
}

// anonymous returns a configuration without credentials.
func (c *Cluster) anonymous() *rest.Config {
	return &rest.Config{
		Host:            c.URL(),
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CABundle()},
	}
}

// WriteKubeconfig writes a kubeconfig with one context to path, readable only by the owner, and replaces an existing
// file atomically. config is from User, AdminConfig or ServiceAccountConfig, perhaps with another Host and CAData.
func (c *Cluster) WriteKubeconfig(path string, config *rest.Config) error {
	const name = "devcluster"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.CurrentContext = name
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	data, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return fmt.Errorf("encoding kubeconfig %q: %w", path, err)
	}
	if err := atomicfile.Write(path, data); err != nil {
		return fmt.Errorf("writing kubeconfig %q: %w", path, err)
	}
	return nil
}
