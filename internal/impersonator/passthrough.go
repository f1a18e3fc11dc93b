package impersonator

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
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// carrier decides how a user travels to the API server: by impersonation, or, when the user has a UID and the API
// server is too old to impersonate one (before 1.22), with the bearer token the user came with.
type carrier struct {
	version *apiVersion
	proof   authenticator.Request // who a bearer token alone is
}

func newCarrier(version *apiVersion, tokens authenticator.Token) *carrier {
	return &carrier{version: version, proof: tokenAlone(tokens)}
}

// tokenAlone is what a request gets whose only credential is a bearer token.
func tokenAlone(tokens authenticator.Token) authenticator.Request {
	return namedUsers{group.NewAuthenticatedGroupAdder(bearertoken.New(tokens))}
}

// passThrough returns the client's token when the request must travel with it, and "" when u is to be impersonated.
// It returns an error when neither can carry u.
func (c *carrier) passThrough(ctx context.Context, u user.Info, state *requestState) (string, error) {
	if u.GetUID() == "" {
		return "", nil
	}
	known, err := c.version.impersonatesUIDs(ctx)
	if err != nil {
		return "", statusUnavailable("the API server does not say whether it can impersonate a user with a UID")
	}
	if known {
		return "", nil
	}
	if state.nested || state.bearer == "" {
		return "", cannotAct("")
	}
	// The token speaks for itself from here on. So it must be, all alone, the very user who was authorized, whatever
	// other credentials the request had.
	alone := (&http.Request{Header: http.Header{"Authorization": {"Bearer " + state.bearer}}}).WithContext(ctx)
	response, ok, err := c.proof.AuthenticateRequest(alone)
	switch {
	case err != nil && state.unavailable != nil:
		return "", statusUnavailable("the API server cannot be reached to authenticate the request")
	case err != nil, !ok, !sameUser(response.User, u):
		return "", cannotAct("")
	}
	return state.bearer, nil
}

// sameUser is true when a and b are the same in everything that the API server looks at.
func sameUser(a, b user.Info) bool {
	return a.GetName() == b.GetName() && a.GetUID() == b.GetUID() &&
		equality.Semantic.DeepEqual(a.GetGroups(), b.GetGroups()) &&
		equality.Semantic.DeepEqual(a.GetExtra(), b.GetExtra())
}

// rememberToken keeps the token by which the request was authenticated, when it was by one. A certificate is looked at
// first, so beside it no token is ever kept.
type rememberToken struct {
	authenticator.Token
}

func (r rememberToken) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := r.Token.AuthenticateToken(ctx, token)
	if state := stateFrom(ctx); ok && err == nil && state != nil {
		state.bearer = token
	}
	return response, ok, err
}

// apiVersion knows what the API server is able to do, by its version. It is asked for when it is needed, and followed
// from then on, as API servers are upgraded while the proxy runs.
type apiVersion struct {
	client  rest.Interface
	uids    atomic.Pointer[bool]
	flights singleflight.Group
}

// impersonatesUIDs is true when the API server understands Impersonate-Uid. Older ones ignore it, and take the request
// as one of a user without a UID.
func (v *apiVersion) impersonatesUIDs(ctx context.Context) (bool, error) {
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

func (v *apiVersion) ask(ctx context.Context) (bool, error) {
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

// refresh asks again, and keeps the last answer when there is no new one.
func (v *apiVersion) refresh(ctx context.Context) {
	if _, err := v.ask(ctx); err != nil {
		klog.FromContext(ctx).V(2).Info("Kept the last known version of the API server", "reason", bounded(err.Error()))
	}
}

// readVersion returns whether a version, as /version says it, is one that impersonates UIDs.
func readVersion(text []byte) (bool, error) {
	var said version.Info
	if err := json.Unmarshal(text, &said); err != nil {
		return false, fmt.Errorf("reading the API server's version: %w", err)
	}
	parsed, err := apimachineryversion.ParseGeneric(said.GitVersion)
	if err != nil {
		return false, fmt.Errorf("reading the API server's version: %w", err)
	}
	// v0.0.0 is what a build without a version says, and nobody builds one that old.
	return parsed.Major() == 0 || parsed.AtLeast(apimachineryversion.MajorMinor(1, 22)), nil
}
