package proxy

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// TestUIDs sends users with and without a UID.
func TestUIDs(t *testing.T) {
	t.Parallel()
	account := authenticationv1.UserInfo{
		Username: "system:serviceaccount:ns:sa", UID: "u-1", Groups: []string{"system:serviceaccounts"},
		Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
	}
	asAccount := map[string][]string{
		"Authorization":       {"Bearer " + upstreamToken},
		"Impersonate-User":    {"system:serviceaccount:ns:sa"},
		"Impersonate-Uid":     {"u-1"},
		"Impersonate-Group":   {"system:serviceaccounts", "system:authenticated"},
		"Impersonate-Extra-K": {"v"},
	}
	websocketToken := "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Protocol: v5.channel.k8s.io, " +
		"base64url.bearer.authorization.k8s.io." +
		base64.RawURLEncoding.EncodeToString([]byte("account")) + "\n"
	for _, test := range []struct {
		name, header string
		certificate  bool // of jane, who has no UID
		want         map[string][]string
	}{
		{
			name: "impersonates the UID of a token's user", header: "Authorization: Bearer account\n",
			want: asAccount,
		},
		{name: "impersonates the UID of a websocket token's user", header: websocketToken, want: asAccount},
		{
			name: "impersonates a nested UID", certificate: true, header: "Impersonate-User: " +
				"joe\nImpersonate-Uid: u-2\n",
			want: map[string][]string{
				"Authorization": {"Bearer " + upstreamToken}, "Impersonate-User": {"joe"}, "Impersonate-Uid": {"u-2"}, "Impersonate-Group": {"system:authenticated"},
			},
		},
		{name: "passes no unauthenticated client's token next to a certificate", certificate: true, header: "Authorization: " +
			"Bearer account\n", want: map[string][]string{
			"Authorization": {"Bearer " + upstreamToken}, "Impersonate-User": {"jane"}, "Impersonate-Group": {"system:authenticated"},
		}},
		{name: "impersonates a user without a UID", header: "Authorization: Bearer joe\n", want: map[string][]string{
			"Authorization": {"Bearer " + upstreamToken}, "Impersonate-User": {"joe"}, "Impersonate-Group": {"system:authenticated"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			p.api.tokens["account"], p.api.tokens["joe"] = account, authenticationv1.UserInfo{Username: "joe"}
			p.start(t)
			certificate := clientCertificate(t, p.signerCA, "jane")
			if !test.certificate {
				certificate = nil
			}
			code, body, _ := p.exchange(
				t,
				certificate,
				"GET /api/v1/namespaces/d/pods/x/exec HTTP/1.1\nHost: proxy\n"+test.header+"\n",
			)
			arrived := p.api.requests()
			if code != 200 || len(arrived) != 1 {
				t.Fatalf("want 200 and one request, got %d and %d: %s", code, len(arrived), body)
			}
			got := withoutCredentialID(identityOf(arrived[0]))
			delete(got, "Impersonate-Extra-Original-User-Info.impersonation-Proxy.concierge.pinniped.dev")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("identity (-want +got):\n%s", diff)
			}
			if strings.Contains(arrived[0].Header.Get("Sec-Websocket-Protocol"), "bearer") {
				t.Errorf("want no token among the subprotocols, got %v", arrived[0].Header)
			}
		})
	}
}
