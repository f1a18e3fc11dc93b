package jwtauthenticator

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestStatusSaysLittleOfWhatIsNoIssuer probes addresses that are not issuers. A user who can write an authenticator
// must not learn from its status what is there.
func TestStatusSaysLittleOfWhatIsNoIssuer(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	answers := func(code int, body string) *httptest.Server {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(server.Close)
		return server
	}
	closed := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	must.Do(t, closed.Close())
	secret := answers(http.StatusUnauthorized, "secret")
	bundle := authenticators.CABundle{
		// httptest uses one certificate for all servers.
		PEM:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secret.Certificate().Raw}),
		Condition: authenticators.Good(authenticators.TypeTLS, "fine"),
	}
	texts := map[string][]string{}
	for what, issuer := range map[string]string{
		"nothing": "https://" + closed.Addr().String(), "no TLS": "https://" + plain.Listener.Addr().String(),
		"refusal": secret.URL, "error": answers(http.StatusInternalServerError, "x").URL,
		"no JSON": answers(http.StatusOK, "<html>").URL, "a redirect": answers(http.StatusFound, "").URL,
	} {
		found := (&Evaluator{Clock: clock.RealClock{}}).evaluate(t.Context(),
			&authenticationv1alpha1.JWTAuthenticatorSpec{Issuer: issuer, Audience: "a"}, bundle, nil)
		for _, condition := range found.Conditions {
			if condition.Type == typeDiscovery {
				texts[condition.Message] = append(texts[condition.Message], what)
			}
		}
	}
	if len(texts) != 1 {
		t.Errorf("the status tells them apart: %q", texts)
	}
}
