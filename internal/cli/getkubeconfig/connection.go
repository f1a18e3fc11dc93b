package getkubeconfig

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
)

// tryConnection connects to the cluster as kubectl will, without a credential. It retries until the timeout, as the
// cluster may be starting, except after permanent errors such as an untrusted certificate.
func (o *Options) tryConnection(ctx context.Context, config *clientcmdapi.Config) error {
	cluster := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	client, err := discovery.NewHTTPClient(cluster, cluster.CertificateAuthorityData)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var task *ui.Task
	defer func() {
		if task != nil {
			task.Stop()
		}
	}()
	var cause error // of the last complete attempt
	for {
		err := discovery.Try(ctx, client, cluster.Server)
		if err == nil {
			// Fetch the trust bundle: the agent records a client of the revision only when it was fetched. Servers
			// without this path return an error, which does not matter.
			_ = discovery.Try(ctx, client, strings.TrimSuffix(cluster.Server, "/")+trustbundle.Path)
			o.Progress.Done("validated connection to the cluster")
			return nil
		}
		over := factory.Over(ctx)
		if over == nil && discovery.Permanent(err) {
			return discovery.Explain(fmt.Errorf("validating the connection to %q: %w", cluster.Server, err))
		}
		if over == nil || cause == nil {
			cause = err
		}
		if over != nil {
			return o.gaveUp(over, cluster.Server, cause)
		}
		if task == nil {
			task = o.Progress.Start(
				"could not immediately connect to the cluster but it may be initializing, will retry until timeout: %v",
				err,
			)
		} else {
			task.Update("could not connect to cluster, retrying: %v", err)
		}
		select {
		case <-ctx.Done():
			return o.gaveUp(ctx.Err(), cluster.Server, cause)
		case <-time.After(o.PollInterval):
		}
	}
}

// gaveUp returns the error when time has run out. over is the error of the context, cause that of the last complete
// attempt.
func (o *Options) gaveUp(over error, server string, cause error) error {
	if errors.Is(over, context.Canceled) {
		return fmt.Errorf("validating the connection to %q: %w", server, over)
	}
	err := fmt.Errorf("validating the connection to %q (--timeout %s): %w: %w", server, o.Timeout, over, cause)
	return ui.WithHint(
		err,
		"check whether this address is reachable from here, or skip the test with --skip-validation",
	)
}
