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
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	tokenLifetime       = 24 * time.Hour
	tokenRequestTimeout = 10 * time.Second
	// tokenPause is the interval at which Run checks whether to request a token. So a rejected token is replaced at
	// most that often, and a failed request is retried after it.
	tokenPause = 2 * time.Second
)

// TokenSource provides the bearer token of the upstream credential. It is safe for concurrent use.
type TokenSource interface {
	// Token returns the current token without waiting. On an error there is none, and the request cannot be sent.
	Token() (string, error)
	// Reject reports that the API server did not accept token. A source that can get another one does so soon.
	Reject(token string)
}

// ServiceAccountToken is a TokenSource: the bound token of a service account. It is requested for 24 hours, renewed
// after four fifths of its lifetime, and kept only in memory. There is no token until Run has received the first.
type ServiceAccountToken struct {
	serviceAccounts corev1client.ServiceAccountInterface
	name            string

	mu    sync.RWMutex
	token string
	// The next token is requested from renew on.
	renew, expiry time.Time
}

// NewServiceAccountToken returns the token source of the service account namespace/name. agent must be allowed to
// create its subresource serviceaccounts/token.
func NewServiceAccountToken(agent *rest.Config, namespace, name string) (*ServiceAccountToken, error) {
	client, err := corev1client.NewForConfig(agent)
	if err != nil {
		return nil, fmt.Errorf("creating a client for service account tokens: %w", err)
	}
	return &ServiceAccountToken{serviceAccounts: client.ServiceAccounts(namespace), name: name}, nil
}

// Token implements TokenSource.
func (t *ServiceAccountToken) Token() (string, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case t.token == "":
		return "", errors.New("no service account token yet")
	case !time.Now().Before(t.expiry):
		return "", errors.New("the service account token has expired and could not be renewed")
	}
	return t.token, nil
}

// Reject implements TokenSource.
func (t *ServiceAccountToken) Reject(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if token == t.token { // ignore a token that is already replaced
		t.renew = time.Time{}
	}
}

// Run requests tokens until ctx ends.
func (t *ServiceAccountToken) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		t.mu.RLock()
		due := !time.Now().Before(t.renew)
		t.mu.RUnlock()
		if !due {
			return
		}
		if err := t.request(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to renew the upstream credential", "retryAfter", tokenPause.String())
		}
	}, tokenPause)
}

func (t *ServiceAccountToken) request(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tokenRequestTimeout)
	defer cancel()
	asked := time.Now()
	response, err := t.serviceAccounts.CreateToken(request.Unlogged(ctx), t.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds()))},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("getting a token for service account %q: %w", t.name, err)
	}
	expiry := response.Status.ExpirationTimestamp.Time
	life := expiry.Sub(asked)
	if response.Status.Token == "" || life <= 0 {
		return fmt.Errorf("getting a token for service account %q: got an expired one", t.name)
	}
	t.mu.Lock()
	t.token, t.renew, t.expiry = response.Status.Token, asked.Add(life/5*4), expiry
	t.mu.Unlock()
	klog.FromContext(ctx).V(2).Info("Renewed the upstream credential", "serviceAccount", t.name, "expires", expiry)
	return nil
}
