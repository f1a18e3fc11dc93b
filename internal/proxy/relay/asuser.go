package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
)

const (
	reservedExtraSuffix = authenticator.ReservedExtraSuffix
	// OriginalUserExtraKey is the extra key with the user who made the request, before nested impersonation.
	OriginalUserExtraKey = "original-user-info" + reservedExtraSuffix
)

// setIdentity sets the headers that make the API server treat the request as one of u. original is the user who
// impersonates u, or nil without nested impersonation. It returns a StatusError when headers cannot express the
// identity exactly. It does not change u, which other requests may share.
func setIdentity(ctx context.Context, h http.Header, u, original user.Info) error {
	if err := checkIdentity(ctx, u); err != nil {
		return err
	}
	h[authenticationv1.ImpersonateUserHeader] = []string{u.GetName()}
	if uid := u.GetUID(); uid != "" {
		h[authenticationv1.ImpersonateUIDHeader] = []string{uid}
	}
	if groups := u.GetGroups(); len(groups) > 0 {
		h[authenticationv1.ImpersonateGroupHeader] = groups
	}
	for key, values := range u.GetExtra() {
		if len(values) > 0 {
			h[extraHeader(key)] = values
		}
	}
	if original == nil {
		return nil
	}
	if err := checkIdentity(ctx, original); err != nil {
		return err
	}
	info := authenticationv1.UserInfo{
		Username: original.GetName(), UID: original.GetUID(), Groups: original.GetGroups(),
		Extra: make(map[string]authenticationv1.ExtraValue, len(original.GetExtra())),
	}
	for key, values := range original.GetExtra() {
		info.Extra[key] = values
	}
	said, err := json.Marshal(info)
	if err != nil {
		return fmt.Errorf("describing the original user: %w", err)
	}
	h[extraHeader(OriginalUserExtraKey)] = []string{string(said)}
	return nil
}

// checkIdentity returns an error unless headers can express u exactly.
func checkIdentity(ctx context.Context, u user.Info) error {
	switch {
	case u.GetName() == "":
		return cannotAct("the user has no name")
	case slices.Contains(u.GetGroups(), ""):
		return cannotAct("a group has no name")
	}
	err := cmp.Or(
		carriable("username", u.GetName()), carriable("UID", u.GetUID()), carriable("group", u.GetGroups()...),
	)
	for key, values := range u.GetExtra() {
		named := "extra key " + strconv.Quote(request.Shown(key))
		switch {
		case key == "":
			return cannotAct("an extra key is empty")
		case strings.ContainsFunc(key, isControl):
			return cannotAct(named + " contains control characters")
		case strings.HasSuffix(strings.ToLower(key), reservedExtraSuffix): // the API server lowercases it
			// Clients of the original impersonation proxy compare the whole message, so a warning names the key
			// instead.
			warning.AddWarning(ctx, "", named+" is reserved")
			return cannotAct("")
		}
		err = cmp.Or(err, carriable("value of "+named, values...))
	}
	return err
}

// extraHeader returns the header name for an extra key. The API server lowercases the name and then decodes %XX, so
// everything but lower case letters, digits, "-" and "." is encoded. That preserves upper case.
func extraHeader(key string) string {
	const hex = "0123456789abcdef"
	name := make([]byte, 0, len(authenticationv1.ImpersonateUserExtraHeaderPrefix)+len(key)+8)
	name = append(name, authenticationv1.ImpersonateUserExtraHeaderPrefix...)
	for i := range len(key) {
		switch c := key[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '.':
			name = append(name, c)
		default:
			name = append(name, '%', hex[c>>4], hex[c&15])
		}
	}
	return http.CanonicalHeaderKey(string(name))
}

// carriable returns an error unless values arrive unchanged in headers. It refuses control characters instead of
// escaping them. It also refuses space around a value: that would be trimmed, and two names could become one.
func carriable(what string, values ...string) error {
	for _, value := range values {
		if strings.ContainsFunc(value, isControl) {
			return cannotAct(fmt.Sprintf("a %s contains control characters", what))
		}
		if strings.TrimSpace(value) != value {
			return cannotAct(fmt.Sprintf("a %s begins or ends with space", what))
		}
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// cannotAct is the error for a user whom the proxy cannot impersonate.
func cannotAct(why string) error {
	message := "unimplemented functionality - unable to act as current user"
	if why != "" {
		message += ": " + why
	}
	return apierrors.NewInternalError(errors.New(message))
}

// asUser is a RoundTripper that sends requests to the API server as the user in their context. It refuses a request
// without a user.
type asUser struct {
	Options
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper. ReverseProxy calls it with a copy of the request without hop-by-hop headers.
// So it may change the header in place, and no later step removes what it sets.
func (t *asUser) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	u, ok := apirequest.UserFrom(ctx)
	state := request.From(ctx)
	if !ok || u == nil || state == nil || state.Original == nil {
		return nil, apierrors.NewInternalError(errors.New("no user to impersonate"))
	}
	for name := range req.Header {
		if !request.MayBeIdentityHeader(name) {
			continue
		}
		switch folded := request.Fold(name); {
		case strings.HasPrefix(folded, "x-remote-"):
			delete(req.Header, name)
		case request.IsIdentityHeader(folded):
			return nil, apierrors.NewInternalError(fmt.Errorf("header %q was not consumed", request.Shown(name)))
		}
	}
	dropTokenProtocols(req.Header)
	var original user.Info
	if state.Nested {
		original = state.Original
	}
	if err := setIdentity(ctx, req.Header, u, original); err != nil {
		return nil, err
	}
	if state.Login != nil {
		// This tells the agent not to ask the cluster's own signer for a certificate.
		req.Header[extraHeader(signer.AtProxyKey)] = []string{state.Login.Group}
	}
	token, err := t.Token.Token()
	if err != nil || token == "" {
		return nil, t.Upstream.problem(problemNoCredential,
			request.StatusUnavailable("the proxy has no credential for the API server yet"))
	}
	state.UpstreamToken = token
	req.Header["Authorization"] = []string{"Bearer " + token}
	state.Sent = time.Now()
	res, err := t.next.RoundTrip(req)
	if state.Login != nil {
		state.Login.Sent()
	}
	state.Responded = time.Now()
	return res, err
}

// tokenProtocol is the prefix of the WebSocket subprotocol that contains a bearer token.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// dropTokenProtocols removes a token from the WebSocket subprotocols. It is still there when another credential was
// used.
func dropTokenProtocols(h http.Header) {
	lines := h["Sec-Websocket-Protocol"]
	kept := slices.DeleteFunc(strings.Split(strings.Join(lines, ","), ","), func(protocol string) bool {
		return strings.HasPrefix(strings.TrimSpace(protocol), tokenProtocol)
	})
	if delete(h, "Sec-Websocket-Protocol"); len(lines) > 0 && len(kept) > 0 {
		h["Sec-Websocket-Protocol"] = []string{strings.Join(kept, ",")}
	}
}
