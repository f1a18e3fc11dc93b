package relay

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
)

// FuzzTokenProtocols checks that no WebSocket subprotocol with a token is forwarded, however it is hidden.
func FuzzTokenProtocols(f *testing.F) {
	const token = "base64url.bearer.authorization.k8s.io.dG9rZW4"
	f.Add(token, "v5.channel.k8s.io")
	f.Add("v5.channel.k8s.io, "+token, "")
	f.Add(" ,"+token+" ,a", token)
	f.Add("Base64url.bearer.authorization.k8s.io.dG9rZW4", "a,,b")
	everybody := websocket.NewProtocolAuthenticator(
		authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "somebody"}}, true, nil
		}),
	)
	f.Fuzz(func(t *testing.T, first, second string) {
		header := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {first, second}}
		var want []string
		for protocol := range strings.SplitSeq(first+","+second, ",") {
			if !strings.HasPrefix(strings.TrimSpace(protocol), tokenProtocol) {
				want = append(want, protocol)
			}
		}
		dropTokenProtocols(header)
		left := strings.ReplaceAll(strings.Join(header["Sec-Websocket-Protocol"], ","), " ", "")
		if strings.Contains(left, ","+tokenProtocol) || strings.HasPrefix(left, tokenProtocol) {
			t.Errorf("a token is left: %q", left)
		}
		if got := strings.Join(want, ","); got != strings.Join(header["Sec-Websocket-Protocol"], ",") {
			t.Errorf("want %q left, got %q", got, left)
		}
		if _, ok, _ := everybody.AuthenticateRequest(&http.Request{Header: header}); ok {
			t.Errorf("somebody can still log in with %q", left)
		}
	})
}
