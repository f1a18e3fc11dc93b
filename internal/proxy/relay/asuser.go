package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
	// OriginalUserExtraKey is the extra key of the user who asked to act as another.
	OriginalUserExtraKey = "original-user-info" + reservedExtraSuffix
)

// setIdentity writes the headers that make the API server treat the request as one of u. Original is the user who
// asked to act as u; it is nil without nested impersonation. setIdentity returns a StatusError when headers cannot
// express the identity exactly. It does not change u, which other requests may share.
func setIdentity(h http.Header, u, original user.Info) error {
	if err := checkIdentity(u); err != nil {
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
	if err := checkIdentity(original); err != nil {
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

// checkIdentity returns an error unless headers can express all of u exactly.
func checkIdentity(u user.Info) error {
	if u.GetName() == "" {
		return cannotAct("the user has no name")
	}
	if err := carriable("username", u.GetName()); err != nil {
		return err
	}
	if err := carriable("UID", u.GetUID()); err != nil {
		return err
	}
	for _, group := range u.GetGroups() {
		if group == "" {
			return cannotAct("a group has no name")
		}
		if err := carriable("group", group); err != nil {
			return err
		}
	}
	if reservedExtraKey(u) != "" {
		// Clients of this kind of proxy compare the text as a whole, so the key is named in a warning instead.
		return cannotAct("")
	}
	for key, values := range u.GetExtra() {
		if key == "" {
			return cannotAct("an extra key is empty")
		}
		if strings.ContainsFunc(key, isControl) {
			return cannotAct(fmt.Sprintf("extra key %q contains control characters", request.Shown(key)))
		}
		for _, value := range values {
			if err := carriable(fmt.Sprintf("value of extra key %q", request.Shown(key)), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// reservedExtraKey returns an extra key of u that only this proxy may set, "" when there is none. Capitals and small
// letters are the same here, because the API server reads keys in lower case.
func reservedExtraKey(u user.Info) string {
	for key := range u.GetExtra() {
		if strings.HasSuffix(strings.ToLower(key), reservedExtraSuffix) {
			return key
		}
	}
	return ""
}

// extraHeader returns the name of the header for an extra key. The API server reads it in lower case and then decodes
// %XX, so everything but lower case letters, digits, "-" and "." is encoded: capitals too, which would be lost.
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

// carriable returns an error unless value arrives unchanged when it is sent in a header. Line ends and other control
// characters are refused, not escaped. So is space around a value: it would be lost on the way, and two names could
// become one.
func carriable(what, value string) error {
	if strings.ContainsFunc(value, isControl) {
		return cannotAct(fmt.Sprintf("a %s contains control characters", what))
	}
	if strings.TrimSpace(value) != value {
		return cannotAct(fmt.Sprintf("a %s begins or ends with space", what))
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// cannotAct is the answer for a user whom the proxy cannot impersonate.
func cannotAct(why string) error {
	message := "unimplemented functionality - unable to act as current user"
	if why != "" {
		message += ": " + why
	}
	return apierrors.NewInternalError(errors.New(message))
}

// asUser sends requests to the API server as the user in their context. It refuses a request without a user.
type asUser struct {
	token TokenSource
	next  http.RoundTripper
}

var errNoToken = request.StatusUnavailable("the proxy has no credential for the API server yet")

// RoundTrip implements http.RoundTripper. ReverseProxy calls it with a copy of the request whose hop-by-hop headers
// are already removed. So the header can be changed in place, and no later step removes what is set here.
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
		if folded := request.Fold(name); request.IsIdentityHeader(folded) {
			if strings.HasPrefix(folded, "x-remote-") {
				delete(req.Header, name)
				continue
			}
			return nil, apierrors.NewInternalError(fmt.Errorf("header %q came too far", request.Shown(name)))
		}
	}
	dropTokenProtocols(req.Header)
	var original user.Info
	if state.Nested {
		original = state.Original
	}
	if err := setIdentity(req.Header, u, original); err != nil {
		if key := reservedExtraKey(u); key != "" {
			warning.AddWarning(ctx, "", fmt.Sprintf("extra key %q is reserved", request.Shown(key)))
		}
		return nil, err
	}
	if state.Login != nil {
		// The agent then need not ask the cluster's own signer for a certificate.
		req.Header[extraHeader(signer.AtProxyKey)] = []string{state.Login.Group}
	}
	token, err := t.token.Token()
	if err != nil || token == "" {
		return nil, errNoToken
	}
	state.UpstreamToken = token
	req.Header["Authorization"] = []string{"Bearer " + token}
	state.Sent = time.Now()
	res, err := t.next.RoundTrip(req)
	if state.Login != nil {
		state.Login.Sent()
	}
	state.Answered = time.Now()
	return res, err
}

// tokenProtocol begins the websocket subprotocol that is a bearer token.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// dropTokenProtocols removes a token from the websocket subprotocols. One is left there when another credential was
// used.
func dropTokenProtocols(h http.Header) {
	lines, ok := h["Sec-Websocket-Protocol"]
	if !ok {
		return
	}
	var kept []string
	for protocol := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		if protocol = strings.TrimSpace(protocol); !strings.HasPrefix(protocol, tokenProtocol) {
			kept = append(kept, protocol)
		}
	}
	if len(kept) == 0 {
		delete(h, "Sec-Websocket-Protocol")
		return
	}
	h["Sec-Websocket-Protocol"] = []string{strings.Join(kept, ", ")}
}
