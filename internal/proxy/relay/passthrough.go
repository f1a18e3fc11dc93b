package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/api/equality"
	apimachineryversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// tokenPassThrough decides whether a request is sent on with the client's own bearer token. That is so when the user
// has a UID and the API server is too old to impersonate one (before 1.22). In all other cases the user is
// impersonated.
type tokenPassThrough struct {
	version *APIVersion
	proof   authenticator.Request // says whose a bearer token is, when it is the only credential
}

func newTokenPassThrough(version *APIVersion, proof authenticator.Request) *tokenPassThrough {
	return &tokenPassThrough{version: version, proof: proof}
}

// token returns the client's token when the request must be sent with it, and "" when u is to be impersonated. It
// returns an error when u can be sent in neither way.
func (p *tokenPassThrough) token(ctx context.Context, u user.Info, state *request.State) (string, error) {
	if u.GetUID() == "" {
		return "", nil
	}
	known, err := p.version.impersonatesUIDs(ctx)
	if err != nil {
		return "", request.StatusUnavailable("the API server does not say whether it can impersonate a user with a UID")
	}
	if known {
		return "", nil
	}
	if state.Nested || state.ClientToken == "" {
		return "", cannotAct("")
	}
	// The API server will see the token and nothing else. So the token alone must belong to the very user who was
	// authorized, whatever other credentials the request had.
	alone := (&http.Request{Header: http.Header{"Authorization": {"Bearer " + state.ClientToken}}}).WithContext(ctx)
	response, ok, err := p.proof.AuthenticateRequest(alone)
	switch {
	case err != nil && state.Unavailable != nil:
		return "", request.StatusUnanswered(
			ctx,
			state.Unavailable,
			"the API server cannot be reached to authenticate the request",
		)
	case err != nil, !ok, !sameUser(response.User, u):
		return "", cannotAct("")
	}
	return state.ClientToken, nil
}

// sameUser is true when a and b agree in everything that the API server looks at.
func sameUser(a, b user.Info) bool {
	return a.GetName() == b.GetName() && a.GetUID() == b.GetUID() &&
		equality.Semantic.DeepEqual(a.GetGroups(), b.GetGroups()) &&
		equality.Semantic.DeepEqual(a.GetExtra(), b.GetExtra())
}

// APIVersion knows from the API server's version what the API server is able to do. The version is read when it is
// first needed, and read again from time to time, because API servers are upgraded while the proxy runs.
type APIVersion struct {
	client  rest.Interface
	uids    atomic.Pointer[bool]
	flights singleflight.Group
}

// NewAPIVersion returns a version that client asks for.
func NewAPIVersion(client rest.Interface) *APIVersion { return &APIVersion{client: client} }

// impersonatesUIDs is true when the API server understands Impersonate-Uid. An older one ignores it, and takes the
// user for one without a UID.
func (v *APIVersion) impersonatesUIDs(ctx context.Context) (bool, error) {
	if known := v.uids.Load(); known != nil {
		return *known, nil
	}
	flight := v.flights.DoChan("", func() (any, error) { return v.ask(context.WithoutCancel(ctx)) })
	select {
	case landed := <-flight:
		if landed.Err != nil {
			return false, landed.Err
		}
		return landed.Val.(bool), nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (v *APIVersion) ask(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	text, err := v.client.Get().AbsPath("/version").SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return false, fmt.Errorf("asking for the API server's version: %w", err)
	}
	uids, err := readVersion(text)
	if err != nil {
		return false, err
	}
	if last := v.uids.Swap(&uids); last == nil && !uids || last != nil && *last != uids {
		klog.FromContext(ctx).Info("Found out how users with a UID reach the API server", "impersonated", uids)
	}
	return uids, nil
}

// Refresh reads the version again. When the API server gives no answer, the last one is kept.
func (v *APIVersion) Refresh(ctx context.Context) {
	if _, err := v.ask(ctx); err != nil {
		klog.FromContext(ctx).
			V(2).
			Info("Kept the last known version of the API server", "reason", request.Bounded(err.Error()))
	}
}

// readVersion returns whether an API server with this answer to /version impersonates UIDs.
func readVersion(text []byte) (bool, error) {
	var said version.Info
	if err := json.Unmarshal(text, &said); err != nil {
		return false, fmt.Errorf("reading the API server's version: %w", err)
	}
	parsed, err := apimachineryversion.ParseGeneric(said.GitVersion)
	if err != nil {
		return false, fmt.Errorf("reading the API server's version: %w", err)
	}
	// v0.0.0 is the version of a build that was not given one. Such a build is never as old as 1.21.
	return parsed.Major() == 0 || parsed.AtLeast(apimachineryversion.MajorMinor(1, 22)), nil
}
