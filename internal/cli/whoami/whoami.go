// Package whoami implements `pinniped whoami`.
package whoami

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// Asker asks a cluster for the user's identity.
type Asker interface {
	WhoAmI(ctx context.Context) (*identityv1alpha1.WhoAmIRequest, error)
}

// Options holds the inputs of the command; a test fills it directly.
type Options struct {
	genericiooptions.IOStreams
	Cluster factory.ClusterFlags
	Output  string
	Suffix  string
	Timeout time.Duration
	Now     func() time.Time
	// Connect loads the kubeconfig, without contacting the cluster.
	Connect func(flags factory.ClusterFlags, suffix string) (*Connection, error)
}

// Connection is a connection to a cluster of a kubeconfig.
type Connection struct {
	Name, Server string
	Asker        Asker
	// Login finds out how the user logged in. It is called after the cluster has responded; nil means unknown.
	Login func(ctx context.Context) Login
}

// Login is how a user logged in. Unknown fields are empty.
type Login struct {
	Strategy   string // of the agent
	Endpoint   string // that exchanged the token
	Credential string
	Expiry     time.Time // of the credential
}

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{
		IOStreams: f.IOStreams, Now: f.Now,
		Connect: func(flags factory.ClusterFlags, suffix string) (*Connection, error) {
			cluster, err := f.Cluster(flags)
			if err != nil {
				return nil, err
			}
			client, err := f.Connect(cluster, suffix)
			if err != nil {
				return nil, err
			}
			return &Connection{
				Name: cluster.Source.ClusterName, Server: cluster.Source.Cluster.Server, Asker: client,
				Login: func(ctx context.Context) Login { return describe(ctx, f, cluster, client) },
			}, nil
		},
	}
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Print the user that the cluster sees",
		Long: `Print the name, groups, UID and extra attributes of the user that the cluster sees for a kubeconfig. The command logs in
first if necessary. The text output also shows the strategy and the credential's remaining lifetime, if known.`,
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
	factory.AddOutput(cmd, &o.Output, factory.Formats()...)
	flags.StringVar(&o.Suffix, "api-group-suffix", apis.DefaultGroupSuffix, "API group suffix of the installation")
	flags.DurationVar(&o.Timeout, "timeout", 0, "total time limit, including an interactive login (0: none)")
	o.Cluster.AddFlags(flags)
	factory.Bind(flags, "api-group-suffix", factory.KeyAPIGroupSuffix)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"kubeconfig-context": f.CompleteContexts(&o.Cluster),
	})
	return cmd
}

// Validate checks the flags.
func (o *Options) Validate() error {
	if err := factory.CheckOutput(o.Output, factory.Formats()...); err != nil {
		return err
	}
	return ui.Usage(factory.ValidateSuffix(o.Suffix))
}

// Run asks the cluster and prints the identity.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	connection, err := o.Connect(o.Cluster, o.Suffix)
	if err != nil {
		return err
	}
	answer, err := connection.Asker.WhoAmI(ctx)
	if err != nil {
		if errors.Is(err, discovery.ErrNotInstalled) {
			err = ui.WithHint(err, "check that the agent is running and that its API group suffix is %q", o.Suffix)
		}
		return fmt.Errorf("identifying the user: %w", err)
	}
	text, err := o.format(ctx, connection, answer)
	if err != nil {
		return fmt.Errorf("encoding the response: %w", err)
	}
	if _, err := o.Out.Write(text); err != nil {
		return fmt.Errorf("writing the response: %w", err)
	}
	return nil
}

func (o *Options) format(
	ctx context.Context,
	connection *Connection,
	answer *identityv1alpha1.WhoAmIRequest,
) ([]byte, error) {
	switch o.Output {
	case "json":
		text, err := json.MarshalIndent(answer, "", "  ")
		return append(text, '\n'), err
	case "yaml":
		return yaml.Marshal(answer)
	}
	user := answer.Status.KubernetesUserInfo.User
	text := fmt.Appendf(
		nil,
		"Current cluster info:\n\nName: %s\nURL: %s\n\nCurrent user info:\n\nUsername: %s\nGroups: %s\n",
		ui.Plain(connection.Name),
		ui.Plain(connection.Server),
		ui.Plain(user.Username),
		ui.Plain(strings.Join(user.Groups, ", ")),
	)
	// Pinniped's CLI prints the lines above; the lines below are additional.
	if user.UID != "" {
		text = fmt.Appendf(text, "UID: %s\n", ui.Plain(user.UID))
	}
	if len(user.Extra) > 0 {
		text = append(text, "Extra:\n"...)
		for _, key := range slices.Sorted(maps.Keys(user.Extra)) {
			text = fmt.Appendf(text, "  %s: %s\n", ui.Plain(key), ui.Plain(strings.Join(user.Extra[key], ", ")))
		}
	}
	if connection.Login == nil {
		return text, nil
	}
	return append(text, o.formatLogin(connection.Login(ctx))...), nil
}

func (o *Options) formatLogin(login Login) string {
	expires := ""
	if !login.Expiry.IsZero() {
		expires = fmt.Sprintf("in %s (%s)", ui.Roughly(login.Expiry.Sub(o.Now())), login.Expiry.UTC().Format(time.RFC3339))
	}
	var lines strings.Builder
	for _, line := range []struct{ name, value string }{
		{"Strategy", login.Strategy}, {"Endpoint", login.Endpoint}, {"Credential", login.Credential}, {"Expires", expires},
	} {
		if line.value != "" {
			lines.WriteString(line.name + ": " + ui.Plain(line.value) + "\n")
		}
	}
	if lines.Len() == 0 {
		return ""
	}
	return "\nCurrent login info:\n\n" + lines.String()
}
