package factory

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/viper"
	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// completionTimeout limits a shell completion.
const completionTimeout = 3 * time.Second

// CompleteFlags registers shell completion for flags of cmd.
func CompleteFlags(cmd *cobra.Command, functions map[string]cobra.CompletionFunc) {
	for name, complete := range functions {
		if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
			panic(err) // a bug
		}
	}
}

// CompleteValues completes fixed values.
func CompleteValues(values ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteContexts completes the contexts of the kubeconfig that flags name.
func (f *Factory) CompleteContexts(flags *ClusterFlags) cobra.CompletionFunc {
	return f.complete(func(context.Context) ([]string, error) {
		rules, _, err := f.loadingRules(flags.Kubeconfig)
		if err != nil {
			return nil, err
		}
		raw, _, err := f.load(rules.GetLoadingPrecedence())
		if err != nil {
			return nil, err
		}
		return slices.Sorted(maps.Keys(raw.Contexts)), nil
	})
}

// complete completes what list returns after the configuration is applied, or nothing after an error or too long.
func (f *Factory) complete(list func(context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completionTimeout)
		defer cancel()
		_ = f.ApplyConfig(viper.New(), cmd) // complete even with a broken configuration
		found, err := list(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFromCluster completes what list returns for the cluster that flags select, with the API group suffix. If the
// cluster does not respond in time, it completes nothing.
func (f *Factory) CompleteFromCluster(
	flags *ClusterFlags,
	suffix *string,
	list func(context.Context, *discovery.Client) ([]string, error),
) cobra.CompletionFunc {
	return f.complete(func(ctx context.Context) ([]string, error) {
		cluster, err := f.Cluster(*flags)
		if err != nil {
			return nil, err
		}
		client, err := f.Connect(cluster, *suffix)
		if err != nil {
			return nil, err
		}
		return list(ctx, client)
	})
}

// CompleteSecrets completes the names of kubernetes.io/tls Secrets in namespace, or if it is empty, in the agent's
// namespace, or if that is unknown, in usual. It does not request their data, and leaves out the agent's own.
func (f *Factory) CompleteSecrets(flags *ClusterFlags, suffix, namespace *string, usual string) cobra.CompletionFunc {
	return f.CompleteFromCluster(flags, suffix, func(ctx context.Context, client *discovery.Client) ([]string, error) {
		in := *namespace
		if in == "" {
			var err error
			if in, err = client.AgentNamespace(ctx); err != nil {
				in = usual
			}
		}
		names, err := client.SecretNames(ctx, in, corev1.SecretTypeTLS)
		own := ofTheAgents(ctx, client, in)
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(own, name) }), err
	})
}

// ofTheAgents returns the names of the Secrets that agents create in a namespace, which are not for configuration.
func ofTheAgents(ctx context.Context, client *discovery.Client, namespace string) []string {
	issuers, err := client.CredentialIssuers(ctx)
	if err != nil { // complete too much rather than nothing: leave out the default names
		issuers = []configv1alpha1.CredentialIssuer{{}}
	}
	var own []string
	for i := range issuers {
		if objects, _ := discovery.Objects(&issuers[i], namespace); objects.Namespace == namespace {
			own = append(own, objects.GeneratedCertificateSecret, objects.LastKnownGoodCertificateSecret)
		}
	}
	return own
}

// CompleteCredentialIssuers completes the names of the cluster's CredentialIssuers.
func (f *Factory) CompleteCredentialIssuers(flags *ClusterFlags, suffix *string) cobra.CompletionFunc {
	return f.CompleteFromCluster(flags, suffix, func(ctx context.Context, client *discovery.Client) ([]string, error) {
		issuers, err := client.CredentialIssuers(ctx)
		found := make([]string, 0, len(issuers))
		for i := range issuers {
			found = append(found, issuers[i].Name)
		}
		return found, err
	})
}
