package proxy

import (
	"encoding/base64"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

// TestUIDs sends users with and without a UID, from tokens and certificates. No token is forwarded in any place.
func TestUIDs(t *testing.T) {
	t.Parallel()
	account := authenticationv1.UserInfo{
		Username: "system:serviceaccount:ns:sa", UID: "u-1", Groups: []string{"system:serviceaccounts"},
		Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
	}
	asAccount := carried("system:serviceaccount:ns:sa", "system:serviceaccounts", "system:authenticated")
	asAccount["Impersonate-Uid"], asAccount["Impersonate-Extra-K"] = []string{"u-1"}, []string{"v"}
	asJane, asJoeWithUID := carried("jane"), carried("joe")
	asJoeWithUID["Impersonate-Uid"] = []string{"u-2"}
	const exec = "GET /api/v1/namespaces/d/pods/x/exec HTTP/1.1\nHost: proxy\n"
	token, channel := bearerProtocol("account"), "v5.channel.k8s.io"
	for _, test := range []struct {
		name, request string
		certificate   string // of jane, who has no UID
		want          map[string][]string
		protocols     []string // of WebSocket, at the API server
	}{
		{name: "the UID of a token's user", request: exec + "Authorization: Bearer account\n\n", want: asAccount},
		{
			name: "the UID of a websocket token's user", request: execWith(channel + ", " + token), want: asAccount,
			protocols: []string{channel},
		},
		{name: "a websocket token before others", request: execWith(token + ", " + channel), want: asAccount, protocols: []string{channel}},
		{name: "no websocket token next to a certificate", certificate: "jane", request: execWith(token), want: asJane},
		{
			name: "nor one before others", certificate: "jane", request: execWith(token + "," + channel), want: asJane,
			protocols: []string{channel},
		},
		{
			name: "nor one in a line of its own", certificate: "jane", want: asJane, protocols: []string{channel},
			request: execWith(token + "\nSec-WebSocket-Protocol: " + channel),
		},
		{
			name: "a nested UID", certificate: "jane", request: exec + "Impersonate-User: joe\nImpersonate-Uid: u-2\n\n",
			want: asJoeWithUID,
		},
		{
			name: "no token next to a certificate", certificate: "jane", request: exec + "Authorization: Bearer account\n\n",
			want: asJane,
		},
		{name: "a user without a UID", request: exec + "Authorization: Bearer joe\n\n", want: carried("joe")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			p.api.tokens["account"], p.api.tokens["joe"] = account, authenticationv1.UserInfo{Username: "joe"}
			p.start(t)
			response := p.exchange(t, p.certificateOf(t, test.certificate), test.request)
			arrived := p.api.requests()
			if response.Code != 200 || len(arrived) != 1 {
				t.Fatalf("want 200 and one request, got %d and %d: %s", response.Code, len(arrived), response.Body)
			}
			delete(arrived[0].Header, "Impersonate-Extra-Original-User-Info.impersonation-Proxy.concierge.pinniped.dev")
			checkIdentity(t, arrived[0], test.want)
			same.Values(t, "subprotocols", test.protocols, arrived[0].Header["Sec-Websocket-Protocol"])
		})
	}
}

// bearerProtocol returns the WebSocket subprotocol that carries a token.
func bearerProtocol(token string) string {
	return "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
}

// execWith returns a request to run a command over a WebSocket with these subprotocols.
func execWith(protocols string) string {
	return "GET /api/v1/namespaces/d/pods/x/exec HTTP/1.1\nHost: proxy\nConnection: Upgrade\nUpgrade: websocket\n" +
		"Sec-WebSocket-Protocol: " + protocols + "\n\n"
}
