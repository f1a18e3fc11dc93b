package login

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
)

// twoTokens returns one token, and another one after renewal.
type twoTokens struct{ renewals int }

func (s *twoTokens) Token(context.Context) (*oidclogin.Token, error) {
	return &oidclogin.Token{Raw: "first", Expiry: time.Now().Add(time.Hour), Cached: true}, nil
}

func (s *twoTokens) Renew(context.Context) (*oidclogin.Token, error) {
	s.renewals++
	return &oidclogin.Token{Raw: "second", Expiry: time.Now().Add(time.Hour)}, nil
}

// TestRefusedToken checks a token that is used as the credential, and that the cluster refuses.
func TestRefusedToken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		status   int // 0: the cluster does not respond
		insecure bool
		other    bool // the second request is from another process
		want     string
		probes   int
	}{
		{name: "is renewed", status: http.StatusUnauthorized, want: "second", probes: 1},
		{name: "is kept when the cluster accepts it", status: http.StatusOK, want: "first", probes: 1},
		{name: "is kept when the user may not see the version", status: http.StatusForbidden, want: "first", probes: 1},
		{name: "is kept when the cluster is down", want: "first"},
		{name: "is not tried where the server is not verified", status: http.StatusUnauthorized, insecure: true, want: "first"},
		{name: "is not tried when another process asks", status: http.StatusUnauthorized, other: true, want: "first"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			probes := 0
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				probes++
				if r.Header.Get("Authorization") != "Bearer first" || r.URL.Path != "/version" {
					t.Errorf("unexpected request %s with %q", r.URL, r.Header)
				}
				w.WriteHeader(max(test.status, http.StatusOK))
			}))
			defer server.Close()
			bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			var request clientauthenticationv1beta1.ExecCredential
			request.Spec.Cluster = &clientauthenticationv1beta1.Cluster{
				Server: server.URL, CertificateAuthorityData: bundle, InsecureSkipTLSVerify: test.insecure,
			}
			if test.insecure {
				request.Spec.Cluster.CertificateAuthorityData = nil
			}
			info, err := json.Marshal(request)
			if err != nil {
				t.Fatal(err)
			}
			if test.status == 0 {
				server.Close()
			}
			var out bytes.Buffer
			parent := 100
			p := &Plugin{
				IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &bytes.Buffer{}}, ExecInfo: string(info), Now: time.Now,
				CachePath: filepath.Join(t.TempDir(), "credentials.yaml"), Args: []string{"login", "oidc"},
				Parent: func() int { return parent },
			}
			p.complete()
			from := &twoTokens{}
			for range 2 {
				out.Reset()
				if err := p.run(t.Context(), "", from); err != nil {
					t.Fatal(err)
				}
				if test.other {
					parent++
				}
			}
			if !strings.Contains(out.String(), `"token":"`+test.want+`"`) || probes != test.probes {
				t.Errorf("want the %s token after %d probes, got %s after %d", test.want, test.probes, &out, probes)
			}
			// A third request, from another process, gets the renewed token.
			parent = 200
			out.Reset()
			if err := p.run(t.Context(), "", from); err != nil || !strings.Contains(out.String(), test.want) {
				t.Errorf("want the %s token in the cache, got %s, %v", test.want, &out, err)
			}
		})
	}
}

// cancelling is a user who cancels each login in the browser.
type cancelling struct{ browsers int }

func (c *cancelling) Token(context.Context) (*oidclogin.Token, error) {
	c.browsers++
	return nil, fmt.Errorf("logging in: %w", &oauth2.RetrieveError{
		Response: &http.Response{StatusCode: http.StatusBadRequest}, ErrorCode: "access_denied",
	})
}

func (c *cancelling) Renew(ctx context.Context) (*oidclogin.Token, error) { return c.Token(ctx) }

// TestARefusalCounts checks that kubectl does not start another login right after the user has cancelled one.
func TestARefusalCounts(t *testing.T) {
	t.Parallel()
	now, parent := time.Now(), 4711
	person, path := &cancelling{}, filepath.Join(t.TempDir(), "credentials.yaml")
	run := func() error {
		plugin := &Plugin{
			IOStreams: genericiooptions.IOStreams{Out: io.Discard, ErrOut: io.Discard}, Parent: func() int { return parent },
			CachePath: path, Now: func() time.Time { return now },
		}
		return plugin.run(t.Context(), "", person)
	}
	first := run()
	for range 5 {
		if err := run(); err == nil || err.Error() != first.Error() {
			t.Errorf("want %v, got %v", first, err)
		}
	}
	if person.browsers != 1 {
		t.Errorf("%d browsers were opened", person.browsers)
	}
	parent++ // the next command
	if err := run(); err == nil || person.browsers != 2 {
		t.Errorf("%d browsers, %v", person.browsers, err)
	}
	now = now.Add(time.Minute) // k9s retries later
	if err := run(); err == nil || person.browsers != 3 {
		t.Errorf("%d browsers, %v", person.browsers, err)
	}
}
