// Command trustmanager runs trust-manager's Bundle controller against the API server of a kubeconfig, for tests.
// trust-manager's own program listens on all addresses.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	trustapi "github.com/cert-manager/trust-manager/pkg/apis/trust/v1alpha1"
	"github.com/cert-manager/trust-manager/pkg/bundle"
	"github.com/cert-manager/trust-manager/pkg/bundle/controller"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	// controller-runtime defines --kubeconfig.
	namespace := flag.String("trust-namespace", "", "namespace of the Bundles' sources")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *namespace); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run runs the controller until ctx ends.
func run(ctx context.Context, namespace string) error {
	ctrl.SetLogger(klog.Background())
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, trustapi.AddToScheme} {
		if err := add(types); err != nil {
			return err
		}
	}
	options := controller.Options{Namespace: namespace}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: types, Metrics: server.Options{BindAddress: "0"}, Cache: bundle.CacheOpts(options),
	})
	if err != nil {
		return err
	}
	if err := bundle.SetupWithManager(ctx, manager, options); err != nil {
		return err
	}
	return manager.Start(ctx)
}
