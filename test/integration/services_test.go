package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// TestTheServiceFollowsTheConfiguration shows that the shipped permissions let the agent create, change and delete the
// Service in front of its proxy.
func TestTheServiceFollowsTheConfiguration(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	const annotation = "example.com/pool"
	name := ours("pinniped-concierge-impersonation-proxy-cluster-ip")
	for _, pool := range []string{"one", "two"} {
		w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
			s.Service = configv1alpha1.ImpersonationProxyServiceSpec{
				Type: configv1alpha1.ServiceTypeClusterIP, Annotations: map[string]string{annotation: pool},
			}
		})
		testkit.Eventually(t, 20*time.Second, func() error {
			var service corev1.Service
			if err := w.admin.Get(t.Context(), name, &service); err != nil {
				return err
			}
			if service.Spec.Type != corev1.ServiceTypeClusterIP || service.Annotations[annotation] != pool {
				return fmt.Errorf("the Service is of type %s, with annotations %v", service.Spec.Type, service.Annotations)
			}
			return nil
		})
	}
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.Service = configv1alpha1.ImpersonationProxyServiceSpec{Type: configv1alpha1.ServiceTypeNone}
	})
	testkit.Eventually(t, 20*time.Second, func() error {
		if err := w.admin.Get(t.Context(), name, &corev1.Service{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Service is still there: %w", err)
		}
		return nil
	})
}
