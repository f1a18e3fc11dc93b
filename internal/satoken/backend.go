package satoken

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/oauth2"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"
)

const (
	checkInterval = 10 * time.Minute
	firstRetry    = 2 * time.Second
	// maxInFlight is the maximum number of concurrent logins. Each needs about five API calls.
	maxInFlight = 16
)

// DefaultMax is the default maximum number of accounts. Each adds a ClusterRoleBinding, and the API server evaluates
// all of them for every request.
const DefaultMax = 1000

// ErrOff is returned while the strategy is off or does not work.
var ErrOff = errors.New("this cluster issues no service account tokens")

// Settings are the options that an administrator sets.
type Settings struct {
	Enabled bool
	Max     int
	// Used means that the strategy was on before, so accounts may exist that must be deleted when it is off.
	Used bool
}

// State is the state of the strategy. It is immutable.
type State struct {
	Enabled bool
	// Checked is false until the first check has finished.
	Checked bool
	Err     error
	// Constrained means that the cluster supports constrained impersonation.
	Constrained bool
	// Server and CABundle (PEM) are how clients reach the API server. InfoErr says why they are unknown.
	Server   string
	CABundle []byte
	InfoErr  error
	// Cleaning means that the strategy is off and its accounts are being deleted.
	Cleaning bool
}

// BackendOptions are the options of NewBackend.
type BackendOptions struct {
	Manager   kubernetes.Interface // see Accounts
	Reviewer  kubernetes.Interface
	Namespace string
	// Server is how the agent reaches the API server; its credentials are not used.
	Server *rest.Config
	// Info returns how clients reach the API server.
	Info func(ctx context.Context) (server string, caBundle []byte, err error)
	// IsLeader reports whether this replica deletes unused objects.
	IsLeader func() bool
	// StillOff asks the API server whether the strategy is off. It is called before all accounts are deleted, because a
	// watch may be stale.
	StillOff func(ctx context.Context) (bool, error)
	// Changed is called when State changes.
	Changed func()
}

// Backend runs the strategy on one replica.
type Backend struct {
	options  BackendOptions
	accounts *Accounts
	slots    chan struct{}
	woken    chan struct{}
	state    atomic.Pointer[State]

	mu       sync.Mutex
	settings Settings
}

// NewBackend returns a Backend that is off until Configure turns it on.
func NewBackend(options BackendOptions) *Backend {
	b := &Backend{
		options:  options,
		accounts: New(options.Manager, options.Reviewer, options.Namespace, DefaultMax),
		slots:    make(chan struct{}, maxInFlight),
		woken:    make(chan struct{}, 1),
	}
	b.state.Store(&State{})
	return b
}

// Configure changes the settings. If it turns the strategy off, nothing is issued after it returns.
func (b *Backend) Configure(settings Settings) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if settings.Max == 0 {
		settings.Max = DefaultMax
	}
	settings.Used = settings.Used || b.settings.Enabled || b.settings.Used && !b.state.Load().done()
	if settings == b.settings {
		return
	}
	switched := settings.Enabled != b.settings.Enabled || settings.Used != b.settings.Used
	b.settings = settings
	if switched {
		b.state.Store(&State{Enabled: settings.Enabled, Cleaning: !settings.Enabled && settings.Used})
	}
	b.Wake()
}

// done reports whether the strategy is off and nothing is left to delete.
func (s *State) done() bool { return !s.Enabled && !s.Cleaning }

// Wake triggers a check, for example because this replica is the leader now.
func (b *Backend) Wake() {
	select {
	case b.woken <- struct{}{}:
	default:
	}
}

// State returns the current state.
func (b *Backend) State() State { return *b.state.Load() }

// Issue returns a credential for a user. The caller must have authenticated the identity. It returns ErrOff unless the
// strategy is on and works.
func (b *Backend) Issue(ctx context.Context, user Identity) (*Credential, error) {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	state := b.state.Load()
	if !state.Enabled || !state.Checked || state.Err != nil {
		return nil, ErrOff
	}
	return b.limited().Issue(ctx, user, state.Constrained)
}

// limited returns the accounts with the current maximum.
func (b *Backend) limited() *Accounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	accounts := *b.accounts
	accounts.Max = b.settings.Max
	return &accounts
}

// Run checks and collects periodically until ctx ends.
func (b *Backend) Run(ctx context.Context) {
	retryAfter := firstRetry
	for {
		wait := checkInterval
		if err := b.sync(ctx); err != nil {
			logr.FromContextOrDiscard(ctx).Info("Failed to reconcile users' service accounts", "problem", err.Error())
			wait, retryAfter = retryAfter, min(2*retryAfter, checkInterval)
		} else {
			retryAfter = firstRetry
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-b.woken:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// sync checks the strategy if it is on, and deletes unused objects if this replica is the leader.
func (b *Backend) sync(ctx context.Context) error {
	b.mu.Lock()
	settings := b.settings
	b.mu.Unlock()
	if !settings.Enabled {
		return b.clean(ctx, settings)
	}
	state := State{Enabled: true, Checked: true}
	state.Constrained, state.Err = b.accounts.Check(ctx, b.options.Server)
	state.Server, state.CABundle, state.InfoErr = b.options.Info(ctx)
	if ctx.Err() != nil {
		return nil
	}
	b.set(settings, state)
	if state.Err == nil && b.options.IsLeader() {
		return b.accounts.Collect(ctx, false)
	}
	return state.Err
}

// clean deletes all accounts after the strategy was turned off.
func (b *Backend) clean(ctx context.Context, settings Settings) error {
	if !settings.Used || !b.options.IsLeader() || b.state.Load().done() {
		return nil
	}
	if off, err := b.options.StillOff(ctx); !off || err != nil {
		return err // if it is on again, Configure is about to be called
	}
	// Without the overlay, the agent cannot delete anything.
	if err := explain(b.accounts.Collect(ctx, true)); err != nil && !errors.Is(err, ErrNotPermitted) {
		return err
	}
	b.set(settings, State{})
	return nil
}

// set stores the state, unless the strategy was turned on or off meanwhile.
func (b *Backend) set(settings Settings, state State) {
	b.mu.Lock()
	if b.settings.Enabled != settings.Enabled {
		b.mu.Unlock()
		return
	}
	before := b.state.Swap(&state)
	b.mu.Unlock()
	if !before.equal(&state) {
		b.options.Changed()
	}
}

func (s *State) equal(other *State) bool {
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	return s.Enabled == other.Enabled && s.Checked == other.Checked && s.Cleaning == other.Cleaning &&
		s.Constrained == other.Constrained && text(s.Err) == text(other.Err) && s.Server == other.Server &&
		string(s.CABundle) == string(other.CABundle) && text(s.InfoErr) == text(other.InfoErr)
}

const managerTimeout = 10 * time.Second

// ManagerClient returns a client that authenticates as one of accounts, which manages users' accounts. The agent requests
// its token on first use, and again before it expires.
func ManagerClient(
	agent *rest.Config, accounts corev1client.ServiceAccountInterface, name string,
) (kubernetes.Interface, error) {
	config := rest.AnonymousClientConfig(agent)
	config.UserAgent = agent.UserAgent
	config.QPS = -1 // the number of concurrent logins is limited
	source := transport.NewCachedTokenSource(&managerToken{accounts, name})
	config.Wrap(transport.ResettableTokenSourceWrapTransport(source))
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for users' service accounts: %w", err)
	}
	return client, nil
}

// managerToken requests tokens of the manager's service account.
type managerToken struct {
	accounts corev1client.ServiceAccountInterface
	name     string
}

func (m *managerToken) Token() (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(context.Background(), managerTimeout)
	defer cancel()
	token, err := m.accounts.CreateToken(ctx, m.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(time.Hour.Seconds()))},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting a token for service account %q: %w", m.name, err)
	}
	return &oauth2.Token{
		AccessToken: token.Status.Token, Expiry: token.Status.ExpirationTimestamp.Add(-time.Minute),
	}, nil
}
