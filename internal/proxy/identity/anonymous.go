package identity

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

const probeTimeout = 10 * time.Second

// healthPaths may be open to anonymous users even when nothing else is.
var healthPaths = [...]string{"/healthz", "/readyz", "/livez"}

// anonymousPolicy says what the API server admits without credentials.
type anonymousPolicy struct {
	health [len(healthPaths)]bool
	rest   bool
}

// Anonymous admits anonymous users where the API server does. It always admits them to TokenCredentialRequest, which is
// how users without credentials get some.
type Anonymous struct {
	loginGroup string
	upstream   *url.URL
	transport  http.RoundTripper
	policy     atomic.Pointer[anonymousPolicy]
}

// NewAnonymous returns one that admits nobody before Prime. LoginGroup is the API group of TokenCredentialRequest.
// Requests over transport have no credentials.
func NewAnonymous(loginGroup string, upstream *url.URL, transport http.RoundTripper) *Anonymous {
	return &Anonymous{loginGroup: loginGroup, upstream: upstream, transport: transport}
}

// AuthenticateRequest implements authenticator.Request.
func (a *Anonymous) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if !a.admits(req) {
		return nil, false, nil
	}
	nobody := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	return &authenticator.Response{User: nobody}, true, nil
}

func (a *Anonymous) admits(req *http.Request) bool {
	policy := a.policy.Load()
	if policy == nil {
		return false
	}
	for i, path := range healthPaths {
		if req.URL.Path == path {
			return policy.health[i]
		}
	}
	if policy.rest {
		return true
	}
	info, ok := apirequest.RequestInfoFrom(req.Context())
	return ok && IsLogin(info, a.loginGroup)
}

// IsLogin is true for TokenCredentialRequests.
func IsLogin(info *apirequest.RequestInfo, group string) bool {
	return info.IsResourceRequest && info.APIGroup == group && info.Resource == "tokencredentialrequests" &&
		info.Subresource == ""
}

// probe sends requests without credentials to the API server to find out which of them it admits.
func (a *Anonymous) probe(ctx context.Context) (*anonymousPolicy, error) {
	policy := &anonymousPolicy{}
	health, err := a.admitted(ctx, "/healthz", "")
	if err != nil {
		return nil, fmt.Errorf("could not detect if anonymous authentication is enabled: error from healthz API: %w", err)
	}
	policy.health[0] = health
	for i, path := range healthPaths[1:] {
		admitted, err := a.admitted(ctx, path, "")
		if err != nil {
			admitted = health // the API server does not have this path or is not ready: same as /healthz
		}
		policy.health[i+1] = admitted
	}
	policy.rest, err = a.admitted(ctx, "/api/v1/nodes", "limit=1")
	if err != nil {
		return nil, fmt.Errorf("could not detect if anonymous authentication is enabled: error from v1 nodes API: %w", err)
	}
	return policy, nil
}

// admitted is true when the API server let the request pass authentication.
func (a *Anonymous) admitted(ctx context.Context, path, query string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	target := a.upstream.JoinPath(path)
	target.RawQuery = query
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return false, err
	}
	res, err := a.transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
	switch res.StatusCode {
	case http.StatusOK, http.StatusForbidden:
		return true, nil
	case http.StatusUnauthorized:
		return false, nil
	}
	return false, fmt.Errorf("unexpected answer %q", res.Status)
}

// Prime finds out for the first time what the API server admits. It returns an error when that cannot be told.
func (a *Anonymous) Prime(ctx context.Context) error {
	policy, err := a.probe(ctx)
	if err != nil {
		return err
	}
	a.policy.Store(policy)
	return nil
}

// Refresh probes again. When the API server gives no answer, the last policy is kept.
func (a *Anonymous) Refresh(ctx context.Context) {
	policy, err := a.probe(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Kept the last known anonymous authentication policy", "reason", err.Error())
		return
	}
	if last := a.policy.Swap(policy); last == nil || *last != *policy {
		klog.FromContext(ctx).Info("Anonymous authentication of the API server changed",
			"health", policy.health, "rest", policy.rest)
	}
}
