//go:build unix

package getkubeconfig

import (
	"crypto/x509"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// TestFingerprintOnATerminal types responses to the prompt about an unknown CA. Only "yes" accepts it; otherwise no
// file is written.
func TestFingerprintOnATerminal(t *testing.T) {
	t.Parallel()
	issuer, issuerCA := issuerServer(t, "", "")
	for typed, accepted := range map[string]bool{
		"yes\r": true, "no\r": false, "y\r": false, "\r": false, "\x04": false, // the last is Ctrl-D
	} {
		p := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
		o, _ := fetching(t, p)
		types, in, err := pty.Open()
		if err != nil {
			t.Skipf("this system gives no terminal: %v", err)
		}
		t.Cleanup(func() { _ = errors.Join(types.Close(), in.Close()) })
		var shown testkit.Buffer
		o.In, o.ErrOut = in, &shown
		o.From.Fingerprints, o.From.Roots = nil, x509.NewCertPool()
		o.Destination.Output = filepath.Join(t.TempDir(), "people.yaml")
		if _, err := io.WriteString(types, typed); err != nil {
			t.Fatal(err)
		}
		err = run(t, o)
		question := "SHA-256 " + certs.Fingerprint(p.ca.Certificate().Raw)
		if text := shown.String(); strings.Count(text, question) != 1 || !strings.HasSuffix(text, "(yes/no) ") {
			t.Errorf("%q: the terminal shows %q", typed, text)
		}
		content, errRead := os.ReadFile(o.Destination.Output)
		if accepted {
			if err != nil || !strings.Contains(string(content), p.URL) {
				t.Errorf("%q: %v, and the kubeconfig is %q", typed, err, content)
			}
			continue
		}
		if err == nil || !strings.Contains(ui.HintOf(err), "--ca-fingerprint") || !errors.Is(errRead, os.ErrNotExist) {
			t.Errorf("%q: %v (hint %q), and the kubeconfig is %q", typed, err, ui.HintOf(err), content)
		}
	}
}
