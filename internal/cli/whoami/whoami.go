// Package whoami implements `pinniped whoami`.
package whoami

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
)

// Asker asks a cluster who we are.
type Asker interface {
	WhoAmI(ctx context.Context) (*identityv1alpha1.WhoAmIRequest, error)
}

// Options is everything the command needs; a test fills it directly.
type Options struct {
	genericiooptions.IOStreams
	Cluster factory.ClusterFlags
	Output  string
	Suffix  string
	Timeout time.Duration
	// Connect loads the kubeconfig, without contacting the cluster, and returns the cluster's name, its server and a client.
	Connect func(factory.ClusterFlags, string) (name, server string, asker Asker, err error)
}

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{
		IOStreams: f.IOStreams,
		Connect: func(flags factory.ClusterFlags, suffix string) (string, string, Asker, error) {
			cluster, err := f.Cluster(flags)
			if err != nil {
				return "", "", nil, err
			}
			client, err := f.Connect(cluster, suffix)
			return cluster.Source.ClusterName, cluster.Source.Cluster.Server, client, err
		},
	}
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Print the user that the cluster sees",
		Long:  "Print the username and groups that the cluster sees behind the credential of a kubeconfig, after logging in if that is needed.",
		Example: `  pinniped whoami
  pinniped whoami --kubeconfig user.yaml -o json`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.Output, "output", "o", "text", "output format: text, json or yaml")
	flags.StringVar(&o.Suffix, "api-group-suffix", apis.DefaultGroupSuffix, "API group suffix of the installation")
	flags.DurationVar(&o.Timeout, "timeout", 0, "how long it may take in all, including an interactive login (0: no limit)")
	o.Cluster.AddFlags(flags)
	factory.Bind(flags, "api-group-suffix", factory.KeyAPIGroupSuffix)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"output":             factory.CompleteValues("text", "json", "yaml"),
		"kubeconfig-context": f.CompleteContexts(&o.Cluster),
	})
	return cmd
}

// Validate checks the flags before anything is contacted.
func (o *Options) Validate() error {
	switch o.Output {
	case "text", "json", "yaml":
	default:
		return factory.OneOf("output", o.Output, "text", "json", "yaml")
	}
	return ui.Usage(factory.ValidateSuffix(o.Suffix))
}

// Run asks the cluster and prints its answer.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	name, server, asker, err := o.Connect(o.Cluster, o.Suffix)
	if err != nil {
		return err
	}
	answer, err := asker.WhoAmI(ctx)
	if err != nil {
		if errors.Is(err, discovery.ErrNotInstalled) {
			err = ui.WithHint(err, "is the WhoAmI API of the agent running and healthy, and is %q its API group suffix?", o.Suffix)
		}
		return fmt.Errorf("asking the cluster who we are: %w", err)
	}
	text, err := o.format(name, server, answer)
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	if _, err := o.Out.Write(text); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

func (o *Options) format(name, server string, answer *identityv1alpha1.WhoAmIRequest) ([]byte, error) {
	switch o.Output {
	case "json":
		text, err := json.MarshalIndent(answer, "", "  ")
		return append(text, '\n'), err
	case "yaml":
		return yaml.Marshal(answer)
	}
	user := answer.Status.KubernetesUserInfo.User
	return fmt.Appendf(nil, "Current cluster info:\n\nName: %s\nURL: %s\n\nCurrent user info:\n\nUsername: %s\nGroups: %s\n",
		name, server, user.Username, strings.Join(user.Groups, ", ")), nil
}
