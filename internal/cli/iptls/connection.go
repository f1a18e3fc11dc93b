package iptls

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Connection is what every command here has: where it prints, and how it reaches the cluster and the endpoint.
type Connection struct {
	genericiooptions.IOStreams
	Cluster          factory.ClusterFlags
	Suffix           string
	CredentialIssuer string
	Namespace        string
	Output           string
	Timeout          time.Duration

	// Connect loads the kubeconfig and returns a client, without contacting the cluster, and the API server's clock.
	Connect  func(factory.ClusterFlags, string) (Cluster, func(time.Time) time.Time, error)
	Network  Network
	Now      func() time.Time
	Poll     time.Duration // between two looks at the cluster while waiting
	Progress func() *ui.Progress

	cluster    Cluster
	serverTime func(time.Time) time.Time
	progress   *ui.Progress
}

// connection returns the Connection of a real process, without the values of flags.
func connection(f *factory.Factory) Connection {
	return Connection{
		IOStreams: f.IOStreams, Network: RealNetwork{}, Now: f.Now, Poll: 200 * time.Millisecond, Progress: f.Progress,
		Connect: func(flags factory.ClusterFlags, suffix string) (Cluster, func(time.Time) time.Time, error) {
			cluster, err := f.Cluster(flags)
			if err != nil {
				return nil, nil, err
			}
			clock := &serverClock{now: f.Now}
			clock.watch(cluster.REST)
			client, err := f.Connect(cluster, suffix)
			return client, clock.at, err
		},
	}
}

func (c *Connection) addFlags(cmd *cobra.Command, f *factory.Factory, timeout time.Duration, formats ...string) {
	flags := cmd.Flags()
	last := len(formats) - 1
	usage := "output format: " + strings.Join(formats[:last], ", ") + " or " + formats[last]
	if slices.Contains(formats, "table") {
		usage += ` (text and table are the same)`
	}
	flags.StringVarP(&c.Output, "output", "o", "text", usage)
	flags.DurationVar(&c.Timeout, "timeout", timeout, "how long it may take in all (0: no limit)")
	flags.StringVar(&c.CredentialIssuer, "credential-issuer", "", "name of the CredentialIssuer (default: the only one)")
	flags.StringVarP(&c.Namespace, "namespace", "n", "", "the agent's namespace (default: found in the cluster, else "+defaultNamespace+")")
	flags.StringVar(&c.Suffix, "api-group-suffix", apis.DefaultGroupSuffix, "API group suffix of the installation")
	c.Cluster.AddFlags(flags)
	factory.Bind(flags, "timeout", factory.KeyTimeout)
	factory.Bind(flags, "credential-issuer", factory.KeyCredentialIssuer)
	factory.Bind(flags, "namespace", factory.KeyNamespace)
	factory.Bind(flags, "api-group-suffix", factory.KeyAPIGroupSuffix)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"output":             factory.CompleteValues(formats...),
		"credential-issuer":  f.CompleteCredentialIssuers(&c.Cluster, &c.Suffix),
		"kubeconfig-context": f.CompleteContexts(&c.Cluster),
	})
}

// completeSecrets completes --secret from the cluster.
func completeSecrets(cmd *cobra.Command, f *factory.Factory, c *Connection) {
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"secret": f.CompleteSecrets(&c.Cluster, &c.Suffix, &c.Namespace, defaultNamespace),
	})
}

func (c *Connection) validate(formats ...string) error {
	if err := oneOf("output", c.Output, formats...); err != nil {
		return err
	}
	return ui.Usage(factory.ValidateSuffix(c.Suffix))
}

func oneOf(flag, value string, accepted ...string) error {
	for _, one := range accepted {
		if value == one {
			return nil
		}
	}
	return factory.OneOf(flag, value, accepted...)
}

// write writes the result of a command to stdout. text makes it where no data is asked for.
func (c *Connection) write(result any, text func() ([]byte, error)) error {
	var encoded []byte
	var err error
	switch c.Output {
	case "json":
		encoded, err = json.MarshalIndent(result, "", "  ")
		encoded = append(encoded, '\n')
	case "yaml":
		encoded, err = yaml.Marshal(result)
	default:
		encoded, err = text()
	}
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	if _, err := c.Out.Write(encoded); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// open loads the kubeconfig. It contacts nothing.
func (c *Connection) open() error {
	c.progress = c.Progress()
	var err error
	c.cluster, c.serverTime, err = c.Connect(c.Cluster, c.Suffix)
	return err
}

// locate fills in the agent's namespace. NAMESPACE/NAME of a Secret becomes NAME when it names that very namespace.
func (c *Connection) locate(ctx context.Context, req *request) error {
	namespace, err := findNamespace(ctx, c.cluster, c.Namespace)
	if err != nil {
		return err
	}
	req.namespace = namespace
	name, err := delegation.SecretName(req.secret, namespace)
	if err != nil {
		return ui.Usage(fmt.Errorf("invalid value for --secret: %w", err))
	}
	if name.Namespace == namespace {
		req.secret = name.Name
	}
	return nil
}

// stamp notes what the clocks read.
func (c *Connection) stamp(st *state) {
	st.now = c.Now()
	st.serverTime = c.serverTime(st.now)
}

// judged is decide, and what only the network knows.
func (c *Connection) judged(ctx context.Context, req request, st *state) *plan {
	return c.resolved(ctx, decide(req, st))
}

// resolved adds to a plan what only the network knows.
func (c *Connection) resolved(ctx context.Context, p *plan) *plan {
	if ip := p.wanted.Service.LoadBalancerIP; ip != "" && p.wanted.ExternalEndpoint != "" {
		host, _, err := certs.ParseEndpoint(p.wanted.ExternalEndpoint)
		if err == nil {
			resolved, _ := c.Network.Resolve(ctx, host) // that it does not resolve is said while waiting
			p.report.Findings = append(p.report.Findings, certs.CheckLoadBalancerIP(ip, host, resolved)...)
		}
	}
	return p
}
