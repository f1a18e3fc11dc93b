package satoken

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/oauth2"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"
)

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
