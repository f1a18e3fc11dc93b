package signer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// ConfigMap cluster-info, which kubeadm defines: a kubeconfig without users that says how clients reach the API server.
const (
	infoConfigMap = "cluster-info"
	infoKey       = "kubeconfig"
)

// clusterInfo returns how clients reach the API server.
func (c *Cluster) clusterInfo(ctx context.Context) (server string, caBundle []byte, err error) {
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	return ClusterInfo(ctx, c.core, c.options.Server)
}

// ClusterInfo returns how clients reach the API server, from ConfigMap cluster-info. serverURL, if set, replaces the
// URL.
func ClusterInfo(
	ctx context.Context, core corev1client.ConfigMapsGetter, serverURL string,
) (server string, caBundle []byte, err error) {
	configMap, err := core.ConfigMaps(metav1.NamespacePublic).Get(ctx, infoConfigMap, metav1.GetOptions{})
	if err != nil {
		return "", nil, fmt.Errorf("reading ConfigMap %s/%s, which has the API server's address: %w",
			metav1.NamespacePublic, infoConfigMap, err)
	}
	server, caBundle, err = parseClusterInfo(configMap.Data[infoKey])
	if err != nil {
		return "", nil, fmt.Errorf("reading ConfigMap %s/%s: %w", metav1.NamespacePublic, infoConfigMap, err)
	}
	return cmp.Or(serverURL, server), caBundle, nil
}

// FollowClusterInfo calls changed when ConfigMap cluster-info changes, and once at the start, until ctx ends. Without
// permission to watch it, changed is never called.
func FollowClusterInfo(ctx context.Context, core corev1client.ConfigMapsGetter, changed func()) {
	version := ""
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		events, err := core.ConfigMaps(metav1.NamespacePublic).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", infoConfigMap).String(),
		})
		if err != nil {
			return
		}
		defer events.Stop()
		for event := range events.ResultChan() { // the first event is the current object
			if configMap, ok := event.Object.(*corev1.ConfigMap); ok && configMap.ResourceVersion != version {
				version = configMap.ResourceVersion
				changed()
			}
		}
	}, 10*time.Second) // the API server ends watches after some minutes
}

func parseClusterInfo(content string) (server string, caBundle []byte, err error) {
	if content == "" {
		return "", nil, fmt.Errorf("it has no key %q", infoKey)
	}
	config, err := clientcmd.Load([]byte(content))
	if err != nil {
		return "", nil, fmt.Errorf("parsing the kubeconfig in it: %w", err)
	}
	if len(config.Clusters) != 1 {
		return "", nil, fmt.Errorf("the kubeconfig in it has %d clusters, not one", len(config.Clusters))
	}
	for _, cluster := range config.Clusters {
		server, caBundle = cluster.Server, cluster.CertificateAuthorityData
	}
	switch {
	case !strings.HasPrefix(server, "https://"):
		return "", nil, fmt.Errorf("the server %q in it does not begin with \"https://\"", server)
	case len(caBundle) == 0:
		return "", nil, errors.New("the kubeconfig in it has no certificate-authority-data")
	}
	if found, _ := certs.ParseBundle(caBundle); len(found) == 0 {
		return "", nil, errors.New("the certificate-authority-data in it has no certificate")
	}
	return server, caBundle, nil
}
