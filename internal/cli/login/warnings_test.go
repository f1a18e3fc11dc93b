package login

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestWarnings checks that stderr, which kubectl passes on, shows why a login failed, and the
// cluster's message about a successful one, without control characters.
func TestWarnings(t *testing.T) {
	t.Parallel()
	const failed = `{"status":{"message":"authentication failed"}}`
	for _, test := range []struct {
		name, body string
		warnings   []string
		err        string // the whole error, or ""
		told       string // on stderr
	}{
		{
			name: "why it failed", body: failed,
			warnings: []string{`299 - "login failed: the token expired at 2026-11-22T08:00:00Z"`},
			err:      "login failed: authentication failed: the token expired at 2026-11-22T08:00:00Z",
		},
		{
			name: "nothing of an agent that does not say why", body: failed,
			err: "login failed: authentication failed",
		},
		{
			name: "nothing that is about something else", body: failed,
			warnings: []string{`299 - "this API is old"`},
			err:      "login failed: authentication failed",
		},
		{
			name: "no control characters", body: failed,
			warnings: []string{"299 - \"login failed: 2Jred\u202e\""},
			err:      "login failed: authentication failed: 2Jred",
		},
		{
			name: "nothing of a header that cannot be read", body: failed, warnings: []string{`login failed: x`},
			err: "login failed: authentication failed",
		},
		{
			name: "a warning about a login that succeeds", body: `{"status":{"credential":{"token":"t"}}}`,
			warnings: []string{`299 - "this login is good at the impersonation proxy"`},
			told:     "warning: this login is good at the impersonation proxy\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Warning"] = test.warnings
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, test.body)
			}))
			t.Cleanup(server.Close)
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			o, _ := options(t, server.URL, base64.StdEncoding.EncodeToString(ca))
			err := execute(t.Context(), o)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if !strings.HasSuffix(text, test.err) || test.err == "" && text != "" {
				t.Errorf("want %q, got %q", test.err, text)
			}
			if got := o.Plugin.ErrOut.(*bytes.Buffer).String(); got != test.told {
				t.Errorf("want %q on the standard error, got %q", test.told, got)
			}
		})
	}
}
