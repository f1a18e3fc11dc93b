package getkubeconfig

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// useStrategy completes input for the chosen strategy. With ServiceAccountToken, the plugin must request it by name,
// because the token does not identify the user.
func (o *Options) useStrategy(frontend *discovery.Frontend, input *kubeconfig.Input) {
	if o.Auto {
		o.sayWhy(frontend)
	}
	if frontend.Strategy == configv1alpha1.StrategyServiceAccountToken {
		input.Exec.Concierge.Strategy = string(frontend.Strategy)
		o.Progress.Done("discovered that the cluster issues service account tokens, with which clients impersonate the user")
	}
}

// sayWhy prints the chosen strategy, and the problems of those before it.
func (o *Options) sayWhy(frontend *discovery.Frontend) {
	for _, strategy := range o.issuer.Status.Strategies {
		if strategy.Type == frontend.Strategy {
			o.Progress.Info("chose strategy %s: the first one that works", strategy.Type)
			return
		}
		o.Progress.Info("strategy %s does not work: %s", strategy.Type, strategy.Message)
	}
}

// actAsUser logs in, and makes the kubeconfig impersonate the user that the cluster returns, because the plugin cannot
// tell kubectl to do so.
func (o *Options) actAsUser(ctx context.Context, input *kubeconfig.Input) error {
	concierge := input.Exec.Concierge
	if concierge == nil || concierge.Strategy == "" {
		if o.NoImpersonation {
			return ui.Usage(errors.New("--no-impersonation does not apply to a credential that identifies the user"))
		}
		return nil
	}
	if o.NoImpersonation {
		o.Progress.Warn(
			`the kubeconfig is not for a specific user, so it works only with "pinniped run" and "pinniped kubectl"`,
		)
		return nil
	}
	config, err := kubeconfig.Build(*input)
	if err != nil {
		return fmt.Errorf("building the kubeconfig: %w", err)
	}
	if config, err = kubeconfig.WithDefaults(config); err != nil {
		return err
	}
	connection, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the new kubeconfig: %w", err)
	}
	const hint = "log in as the user of the kubeconfig, or use --no-impersonation to create one for all users, which " +
		"works only with \"pinniped run\""
	credential, err := o.LogIn(ctx, connection)
	if err != nil {
		return ui.WithHint(fmt.Errorf("logging in to determine the user of the kubeconfig: %w", err), hint)
	}
	if credential.Impersonate == nil {
		return ui.WithHint(errors.New("the cluster does not report which user the kubeconfig must impersonate"), hint)
	}
	input.Impersonate = credential.Impersonate
	concierge.Identity = credential.Impersonate.Digest()
	o.Progress.Done("logged in: the kubeconfig impersonates %q, with %d %s", credential.Impersonate.User,
		len(credential.Impersonate.Groups), plural(len(credential.Impersonate.Groups), "group"))
	return nil
}
