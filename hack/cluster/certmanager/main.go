// Command certmanager runs the cert-manager controllers that issue Certificates with the CA issuer, against the API
// server of a kubeconfig. It is for tests, and in a separate module to keep cert-manager's dependencies out of the
// product. cert-manager's own programs are not available as Go modules.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of a user who may do everything")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run runs all registered controllers until ctx ends.
func run(ctx context.Context, kubeconfig string) error {
	contexts, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:    kubeconfig,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: "cert-manager"},
	})
	if err != nil {
		return err
	}
	var all []controller.Interface
	for name, construct := range controller.Known() {
		one, err := construct(contexts)
		if err != nil {
			return fmt.Errorf("making controller %q: %w", name, err)
		}
		all = append(all, one)
	}
	informers, err := contexts.Build("informers") // shared by all controllers
	if err != nil {
		return err
	}
	informers.SharedInformerFactory.Start(ctx.Done())
	informers.KubeSharedInformerFactory.Start(ctx.Done())
	failures := make(chan error, len(all))
	var running sync.WaitGroup
	for _, one := range all {
		running.Go(func() { failures <- one.Run(1, ctx) })
	}
	running.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			return err
		}
	}
	return nil
}
