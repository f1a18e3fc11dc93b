package identity

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

const (
	probeTimeout = 10 * time.Second
	// otherPath stands for all paths that are not health checks.
	otherPath = "/api/v1/nodes"
)

// healthPaths may be open to anonymous users even when nothing else is.
var healthPaths = [...]string{"/healthz", "/readyz", "/livez"}

// Anonymous admits anonymous users where the API server does: everywhere, nowhere, or only to some health checks. It
// always admits them to TokenCredentialRequest, because that is how users get credentials.
type Anonymous struct {
	loginGroup string
	upstream   *url.URL
	transport  http.RoundTripper
	admits     atomic.Pointer[map[string]bool] // by path
}

// NewAnonymous returns an Anonymous that admits anonymous users only to TokenCredentialRequest, of the API group
// loginGroup, until Refresh. transport must send requests without credentials.
func NewAnonymous(loginGroup string, upstream *url.URL, transport http.RoundTripper) *Anonymous {
	a := &Anonymous{loginGroup: loginGroup, upstream: upstream, transport: transport}
	a.admits.Store(&map[string]bool{})
	return a
}

// AuthenticateRequest implements authenticator.Request.
func (a *Anonymous) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	admits := *a.admits.Load()
	admitted, ok := admits[req.URL.Path]
	if !ok {
		admitted = admits[otherPath]
	}
	if info, ok := apirequest.RequestInfoFrom(req.Context()); ok && IsLogin(info, a.loginGroup) {
		admitted = true
	}
	if !admitted {
		return nil, false, nil
	}
	return anonymous.NewAuthenticator(nil).AuthenticateRequest(req)
}

// IsLogin is true for TokenCredentialRequests of the API group.
func IsLogin(info *apirequest.RequestInfo, group string) bool {
	return info.IsResourceRequest && info.APIGroup == group && info.Resource == "tokencredentialrequests" &&
		info.Subresource == ""
}

// Refresh sends requests without credentials to the API server to find out which of them it admits. On an error, it
// keeps the last results.
func (a *Anonymous) Refresh(ctx context.Context) error {
	const unknown = "could not detect if anonymous authentication is enabled: error from %s API: %w"
	health, err := a.admitted(ctx, healthPaths[0])
	if err != nil {
		return fmt.Errorf(unknown, "healthz", err)
	}
	other, err := a.admitted(ctx, otherPath)
	if err != nil {
		return fmt.Errorf(unknown, "v1 nodes", err)
	}
	admits := map[string]bool{healthPaths[0]: health, otherPath: other}
	for _, path := range healthPaths[1:] {
		if admits[path], err = a.admitted(ctx, path); err != nil {
			admits[path] = health // the API server does not have this path or is not ready
		}
	}
	if last := a.admits.Swap(&admits); !maps.Equal(*last, admits) {
		klog.FromContext(ctx).Info("Read the API server's anonymous authentication policy", "admits", admits)
	}
	return nil
}

// admitted is true when the API server's authentication accepts the request.
func (a *Anonymous) admitted(ctx context.Context, path string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	target := a.upstream.JoinPath(path)
	target.RawQuery = "limit=1" // of nodes
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return false, err
	}
	res, err := a.transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be reused
	switch res.StatusCode {
	case http.StatusOK, http.StatusForbidden:
		return true, nil
	case http.StatusUnauthorized:
		return false, nil
	}
	return false, fmt.Errorf("unexpected response %q", res.Status)
}
