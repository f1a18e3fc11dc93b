package clienttrust

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// ConfigMap is the name of the one in which the API server publishes its client CA and its front proxy settings.
const ConfigMap = "extension-apiserver-authentication"

const namespace = metav1.NamespaceSystem

// Prime reads the ConfigMap once, so that the first request already meets the right CAs. A cluster without the
// ConfigMap trusts no client certificates of its own.
func (s *Store) Prime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	configMap, err := s.core.ConfigMaps(namespace).Get(ctx, ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Info("Found no client authentication settings of the cluster",
			"configMap", klog.KRef(namespace, ConfigMap))
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading ConfigMap %q: %w", namespace+"/"+ConfigMap, err)
	}
	s.take(ctx, configMap.Data)
	return nil
}

// Follow keeps the store in step with the ConfigMap until ctx ends.
func (s *Store) Follow(ctx context.Context) {
	take := func(object any) {
		if configMap, ok := object.(*corev1.ConfigMap); ok && configMap.Name == ConfigMap {
			s.take(ctx, configMap.Data)
		}
	}
	// A deleted ConfigMap changes nothing: the API server writes it again within a minute.
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(s.core.RESTClient(), "configmaps", namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, ConfigMap)),
		ObjectType: &corev1.ConfigMap{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: take, UpdateFunc: func(_, object any) { take(object) }},
	})
	controller.RunWithContext(ctx)
}

// take takes over the data of the ConfigMap. What cannot be parsed changes nothing. What is gone is no longer trusted.
func (s *Store) take(ctx context.Context, data map[string]string) {
	log := klog.FromContext(ctx).WithValues("configMap", klog.KRef(namespace, ConfigMap))
	next, err := parseSettings(data)
	if err != nil {
		log.Error(err, "Kept the last good client authentication settings of the cluster")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !reflect.DeepEqual(next, s.cluster) {
		s.cluster = next
		log.Info("Read the cluster's client authentication settings",
			"clientCAs", len(next.users), "frontProxyCAs", len(next.proxies))
	}
}

// settings are what the cluster publishes in the ConfigMap.
type settings struct {
	users, proxies []*x509.Certificate             // CAs
	proxyNames     headerrequest.StaticStringSlice // common names of front proxies; empty for all
	// the headers in which a front proxy says who the user is
	usernames, uids, groups, extraPrefixes headerrequest.StaticStringSlice
}

// parseSettings reads all or nothing: the CA of one version must not meet the allowed names of another.
func parseSettings(data map[string]string) (*settings, error) {
	s := &settings{}
	list := func(into *headerrequest.StaticStringSlice) func([]byte) error {
		return func(text []byte) error { return json.Unmarshal(text, into) }
	}
	roots := func(into *[]*x509.Certificate) func([]byte) error {
		return func(text []byte) (err error) { *into, err = cert.ParseCertsPEM(text); return err }
	}
	for key, parse := range map[string]func([]byte) error{
		"client-ca-file":                     roots(&s.users),
		"requestheader-client-ca-file":       roots(&s.proxies),
		"requestheader-allowed-names":        list(&s.proxyNames),
		"requestheader-username-headers":     list(&s.usernames),
		"requestheader-uid-headers":          list(&s.uids),
		"requestheader-group-headers":        list(&s.groups),
		"requestheader-extra-headers-prefix": list(&s.extraPrefixes),
	} {
		if data[key] == "" {
			continue
		}
		if err := parse([]byte(data[key])); err != nil {
			return nil, fmt.Errorf("parsing %s: %w", key, err)
		}
	}
	return s, nil
}
