package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	tokenLifetime       = 24 * time.Hour
	tokenRequestTimeout = 10 * time.Second
	// A token that the API server rejects is replaced, but not more often than this.
	rejectPause = 5 * time.Second
)

// TokenSource gives the bearer token of the upstream credential. It is safe for concurrent use.
type TokenSource interface {
	// Token returns the token to use now, without waiting. An error means that there is none, and that the request
	// cannot be sent.
	Token() (string, error)
	// Reject says that the API server did not accept token. A source that can get another one does so soon.
	Reject(token string)
}

// ServiceAccountToken is a TokenSource: the bound token of one service account. It is requested for 24 hours, renewed
// when four fifths of its life are over, and kept in memory only. There is no token until Run has received the first.
type ServiceAccountToken struct {
	serviceAccounts corev1client.ServiceAccountInterface
	name            string
	clock           clock.WithTicker
	rejected        chan struct{}

	mu     sync.RWMutex
	token  string
	asked  time.Time
	expiry time.Time
}

// NewServiceAccountToken makes the token source of service account namespace/name. Agent must be allowed to create the
// subresource serviceaccounts/token there. A nil clock is the real one.
func NewServiceAccountToken(
	agent *rest.Config, namespace, name string, clk clock.WithTicker,
) (*ServiceAccountToken, error) {
	client, err := corev1client.NewForConfig(agent)
	if err != nil {
		return nil, fmt.Errorf("making a client for service account tokens: %w", err)
	}
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &ServiceAccountToken{
		serviceAccounts: client.ServiceAccounts(namespace),
		name:            name,
		clock:           clk,
		rejected:        make(chan struct{}, 1),
	}, nil
}

// Token implements TokenSource.
func (t *ServiceAccountToken) Token() (string, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case t.token == "":
		return "", errors.New("no service account token yet")
	case !t.clock.Now().Before(t.expiry):
		return "", errors.New("the service account token has expired and could not be renewed")
	}
	return t.token, nil
}

// Reject implements TokenSource.
func (t *ServiceAccountToken) Reject(token string) {
	t.mu.RLock()
	current := t.token == token && t.clock.Since(t.asked) >= rejectPause
	t.mu.RUnlock()
	if !current {
		return // it is already replaced, or was only just requested
	}
	select {
	case t.rejected <- struct{}{}:
	default:
	}
}

// Run requests tokens until ctx ends. After an error it tries again, first at once and then up to every 10 s.
func (t *ServiceAccountToken) Run(ctx context.Context) {
	for backoff := newTokenBackoff(); ; {
		next, err := t.request(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			next = backoff.Step()
			klog.FromContext(ctx).Error(err, "Could not renew the upstream credential", "again", next.String())
		} else {
			backoff = newTokenBackoff()
		}
		timer := t.clock.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-t.rejected:
			timer.Stop()
		}
	}
}

func newTokenBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 11, Cap: 10 * time.Second}
}

// request gets a token and returns after which time to get the next one.
func (t *ServiceAccountToken) request(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenRequestTimeout)
	defer cancel()
	asked := t.clock.Now()
	answer, err := t.serviceAccounts.CreateToken(request.Unlogged(ctx), t.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds()))},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("requesting a token of service account %q: %w", t.name, err)
	}
	expiry := answer.Status.ExpirationTimestamp.Time
	life := expiry.Sub(asked)
	if answer.Status.Token == "" || life <= 0 {
		return 0, fmt.Errorf("requesting a token of service account %q: got one without a life ahead", t.name)
	}
	t.mu.Lock()
	t.token, t.asked, t.expiry = answer.Status.Token, asked, expiry
	t.mu.Unlock()
	klog.FromContext(ctx).V(2).Info("Renewed the upstream credential", "serviceAccount", t.name, "expires", expiry)
	return life / 5 * 4, nil
}
