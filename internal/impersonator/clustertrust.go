package impersonator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	authenticationNamespace = metav1.NamespaceSystem
	authenticationConfigMap = "extension-apiserver-authentication"
)

// clusterTrustWatcher keeps a trustStore up to date with the one ConfigMap in which the API server publishes its
// client CA and its front proxy settings.
type clusterTrustWatcher struct {
	client corev1client.ConfigMapInterface
	store  *trustStore
}

// prime reads the ConfigMap once, so that the first request already meets the right CAs. A cluster without the
// ConfigMap trusts no client certificates of its own.
func (w *clusterTrustWatcher) prime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	configMap, err := w.client.Get(ctx, authenticationConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Info("Found no client authentication settings of the cluster",
			"configMap", klog.KRef(authenticationNamespace, authenticationConfigMap))
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading ConfigMap %q: %w", authenticationNamespace+"/"+authenticationConfigMap, err)
	}
	w.take(ctx, configMap)
	return nil
}

// run watches until ctx ends.
func (w *clusterTrustWatcher) run(ctx context.Context) {
	byName := fields.OneTermEqualSelector(metav1.ObjectNameField, authenticationConfigMap).String()
	listWatch := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = byName
			return w.client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = byName
			return w.client.Watch(ctx, options)
		},
	}
	take := func(object any) {
		if configMap, ok := object.(*corev1.ConfigMap); ok && configMap.Name == authenticationConfigMap {
			w.take(ctx, configMap)
		}
	}
	// A deleted ConfigMap changes nothing: the API server writes it again within a minute.
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listWatch,
		ObjectType:    &corev1.ConfigMap{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    take,
			UpdateFunc: func(_, object any) { take(object) },
		},
	})
	controller.RunWithContext(ctx)
}

func (w *clusterTrustWatcher) take(ctx context.Context, configMap *corev1.ConfigMap) {
	if err := w.store.setCluster(configMap.Data); err != nil {
		klog.FromContext(ctx).Error(err, "Kept the last good client authentication settings of the cluster",
			"configMap", klog.KObj(configMap))
	}
}
