// Package session gives the commands of `pinniped ip-tls` their common flags and access to the cluster and the
// endpoint: Gather takes a Snapshot for package plan, and Probe reads the certificates that an endpoint presents.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// The values of --dry-run.
const (
	DryRunNone   = "none"
	DryRunClient = "client"
	DryRunServer = "server"
)

// Session is the common part of the commands: output, cluster and network.
type Session struct {
	genericiooptions.IOStreams
	ClusterFlags     factory.ClusterFlags
	Suffix           string
	CredentialIssuer string
	Namespace        string
	Output           string
	Timeout          time.Duration

	// Connect loads the kubeconfig and returns a client and the API server's clock. It sends no request.
	Connect     func(factory.ClusterFlags, string) (Cluster, func(time.Time) time.Time, error)
	Network     Network
	Inputs      *atomicfile.Inputs
	Now         func() time.Time
	Poll        time.Duration // interval between reads of the cluster while waiting
	NewProgress func() *ui.Progress

	// Cluster and Progress are set by Open.
	Cluster    Cluster
	Progress   *ui.Progress
	serverTime func(time.Time) time.Time
	hasField   func(name string) bool // of offered; nil until first needed
}

// New returns the Session of a real process, without flag values.
func New(f *factory.Factory) *Session {
	return &Session{
		IOStreams: f.IOStreams, Network: RealNetwork{}, Inputs: f.Inputs, Now: f.Now, Poll: 200 * time.Millisecond,
		NewProgress: f.Progress,
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

// AddFlags adds the common flags of ip-tls commands. formats are the values of --output.
func (s *Session) AddFlags(cmd *cobra.Command, f *factory.Factory, timeout time.Duration, formats ...string) {
	flags := cmd.Flags()
	factory.AddOutput(cmd, &s.Output, formats...)
	flags.DurationVar(&s.Timeout, "timeout", timeout, "total time limit (0: none)")
	flags.StringVar(&s.CredentialIssuer, "credential-issuer", "", "name of the CredentialIssuer (default: the only one)")
	flags.StringVarP(&s.Namespace, "namespace", "n", "",
		"the agent's namespace (default: found in the cluster, else "+defaultNamespace+")")
	flags.StringVar(&s.Suffix, "api-group-suffix", apis.DefaultGroupSuffix, "API group suffix of the installation")
	s.ClusterFlags.AddFlags(flags)
	factory.Bind(flags, "timeout", factory.KeyTimeout)
	factory.Bind(flags, "credential-issuer", factory.KeyCredentialIssuer)
	factory.Bind(flags, "namespace", factory.KeyNamespace)
	factory.Bind(flags, "api-group-suffix", factory.KeyAPIGroupSuffix)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"credential-issuer":  f.CompleteCredentialIssuers(&s.ClusterFlags, &s.Suffix),
		"kubeconfig-context": f.CompleteContexts(&s.ClusterFlags),
	})
}

// CompleteSecrets completes --secret from the cluster.
func (s *Session) CompleteSecrets(cmd *cobra.Command, f *factory.Factory) {
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"secret": f.CompleteSecrets(&s.ClusterFlags, &s.Suffix, &s.Namespace, defaultNamespace),
	})
}

// Validate checks the flags.
func (s *Session) Validate(formats ...string) error {
	return cmp.Or(factory.CheckOutput(s.Output, formats...), ui.Usage(factory.ValidateSuffix(s.Suffix)))
}

// Print prints a result to stdout as --output says, with text for a person. It returns err.
func (s *Session) Print(object result.Object, err error, text func() ([]byte, error)) error {
	return result.Print(s.Out, s.Output, object, err, text)
}

// Open loads the kubeconfig. It sends no request.
func (s *Session) Open() error {
	s.Progress = s.NewProgress()
	var err error
	s.Cluster, s.serverTime, err = s.Connect(s.ClusterFlags, s.Suffix)
	return err
}

// Locate sets the agent's namespace. A Secret NAMESPACE/NAME in this namespace becomes NAME.
func (s *Session) Locate(ctx context.Context, req *plan.Request) error {
	namespace, err := s.FindNamespace(ctx)
	if err != nil {
		return err
	}
	req.Namespace = namespace
	name, err := delegation.SecretName(req.Secret, namespace)
	if err != nil {
		return ui.Usage(fmt.Errorf("invalid value for --secret: %w", err))
	}
	if name.Namespace == namespace {
		req.Secret = name.Name
	}
	return nil
}

// ServerNow returns the API server's time, or the local time if that is unknown.
func (s *Session) ServerNow() time.Time {
	now := s.Now()
	return cmp.Or(s.serverTime(now), now)
}

// Stamp sets the times of a Snapshot.
func (s *Session) Stamp(st *plan.Snapshot) {
	st.Now = s.Now()
	st.ServerTime = s.serverTime(st.Now)
}

// Cluster reads and writes the cluster; *discovery.Client implements it.
type Cluster interface {
	CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error)
	ApplyCredentialIssuer(ctx context.Context, name string, object any,
		opts discovery.ApplyOptions) (*configv1alpha1.CredentialIssuer, error)
	MergeCredentialIssuer(ctx context.Context, name string, patch any,
		opts discovery.ApplyOptions) (*configv1alpha1.CredentialIssuer, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	ApplySecret(ctx context.Context, namespace, name string, object any, opts discovery.ApplyOptions) (*corev1.Secret,
		error)
	DeleteSecret(ctx context.Context, secret *corev1.Secret) error
	Certificate(ctx context.Context, namespace, name string) (*discovery.Certificate, error)
	Certificates(ctx context.Context, namespace string) ([]discovery.Certificate, error)
	Service(ctx context.Context, namespace, name string) (*corev1.Service, error)
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	ClusterTrustBundle(ctx context.Context, name string) (pem string, err error)
	ApplyConfigMap(ctx context.Context, namespace, name string, object any, opts discovery.ApplyOptions) (
		*corev1.ConfigMap, error)
	AgentNamespace(ctx context.Context) (string, error)
	TLSFields(ctx context.Context) ([]string, error)
	ReplicaLeases(ctx context.Context, namespace string) ([]discovery.ReplicaLease, error)
	// The objects of a delegation, and whether a Secret of another namespace may be used.
	ApplyGrant(ctx context.Context, object map[string]any, opts discovery.ApplyOptions) error
	Grant(ctx context.Context, object map[string]any) (map[string]any, error)
	DeleteGrant(ctx context.Context, found map[string]any, dryRun bool) error
	Delegations(ctx context.Context, namespace string) ([]delegation.Delegation, error)
	MayReadSecret(ctx context.Context, account, secret types.NamespacedName) (bool, error)
}

// serverClock measures the API server's clock by the Date header of its responses.
type serverClock struct {
	now func() time.Time
	gap atomic.Pointer[time.Duration] // how far the server's clock is ahead; nil if unknown
}

// watch makes the clock read the responses to config's requests.
func (c *serverClock) watch(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				c.read(response.Header.Get("Date"))
			}
			return response, err
		})
	})
}

func (c *serverClock) read(header string) {
	if date, err := http.ParseTime(header); err == nil {
		c.gap.Store(new(date.Sub(c.now())))
	}
}

// at returns the server's time at now, or zero if unknown.
func (c *serverClock) at(now time.Time) time.Time {
	if gap := c.gap.Load(); gap != nil {
		return now.Add(*gap)
	}
	return time.Time{}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// rolesHint says where the Roles for these commands are.
const rolesHint = "use an administrator's kubeconfig, or ask for a Role: deploy/iptlsroles has " +
	"pinniped-ip-tls-viewer and pinniped-ip-tls-operator"

// WithCodes adds the exit code, a hint and the API server's message to an error about a forbidden request, once.
func WithCodes(err error) error {
	if !errors.Is(err, discovery.ErrForbidden) || ui.ExitCodeOf(err) == ui.ExitNotPermitted {
		return err
	}
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && status.ErrStatus.Message != "" {
		err = fmt.Errorf("%w: %s", err, status.ErrStatus.Message)
	}
	return ui.WithExitCode(ui.WithHint(err, "%s", rolesHint), ui.ExitNotPermitted)
}
