package proxy

import (
	"context"
	"crypto/tls"
	"encoding/xml"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// h2specReport is the part of h2spec's report that is used here.
type h2specReport struct {
	Suites []struct {
		Package string `xml:"package,attr"`
		Cases   []struct {
			Name    string    `xml:"classname,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// stricterHere are cases in which net/http is stricter and also safe. It responds with 400, before any handler runs, to
// a connection-specific header and to TE with another value than trailers, where h2spec expects a reset of the stream;
// and it closes a connection on which one frame has the same setting twice.
var stricterHere = []string{
	"http2/6.5.3: Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE",
	"http2/8.1.2.2: Sends a HEADERS frame that contains the TE header field with any value other than \"trailers\"",
	"http2/8.1.2.2: Sends a HEADERS frame that contains the connection-specific header field",
}

// TestH2Spec runs the conformance tests of HTTP/2 against the proxy. It takes half a minute, so it runs only when
// H2SPEC names the h2spec binary, as in `make h2spec`.
func TestH2Spec(t *testing.T) {
	t.Parallel()
	tool := os.Getenv("H2SPEC")
	if tool == "" {
		t.Skip("H2SPEC is not set: run make h2spec")
	}
	for name, known := range map[string]bool{"as a user": true, "without credentials": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.serves(slowly())
			address, flags := p.address, []string{"--tls", "--insecure"}
			if known { // h2spec has no client certificate, so a relay adds one
				address, flags = relayTo(t, p.address, p.clientTLS(p.jane(t))), nil
			}
			checkH2Spec(t, tool, address, flags...)
			p.checkServed(t)
		})
	}
}

// slowly responds when no request has arrived for a while, so that a hundred streams are open at once.
func slowly() http.HandlerFunc {
	const quiet = 300 * time.Millisecond
	began := time.Now()
	var latest atomic.Int64 // when the latest request arrived, after began
	return func(w http.ResponseWriter, req *http.Request) {
		latest.Store(int64(time.Since(began)))
		for {
			left := quiet - time.Since(began.Add(time.Duration(latest.Load())))
			if left <= 0 {
				_, _ = io.WriteString(w, "here you are")
				return
			}
			select {
			case <-req.Context().Done():
				return
			case <-time.After(left):
			}
		}
	}
}

// checkH2Spec expects all cases to pass except stricterHere.
func checkH2Spec(t *testing.T, tool, address string, flags ...string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	must.Do(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	reportFile := filepath.Join(t.TempDir(), "report.xml")
	flags = append([]string{"--strict", "--timeout=5", "--host=" + host, "--port=" + port, "--junit-report=" + reportFile},
		flags...)
	output, _ := exec.CommandContext(ctx, tool, flags...).CombinedOutput() // it fails when a case does
	content, err := os.ReadFile(reportFile)
	if err != nil {
		t.Fatalf("reading the report: %v\n%s", err, output)
	}
	var report h2specReport
	must.Do(t, xml.Unmarshal(content, &report))
	cases := 0
	var failed []string
	for _, suite := range report.Suites {
		for _, one := range suite.Cases {
			cases++
			name := suite.Package + ": " + one.Name
			if (one.Failure != nil || one.Error != nil || one.Skipped != nil) && !slices.Contains(stricterHere, name) {
				failed = append(failed, name)
			}
		}
	}
	if cases < 140 {
		t.Errorf("want all cases run, got %d\n%s", cases, output)
	}
	if len(failed) > 0 {
		t.Errorf("%d of %d cases failed: %q\n%s", len(failed), cases, failed, output)
	}
}

// relayTo returns an address whose connections are forwarded over TLS with HTTP/2.
func relayTo(t *testing.T, address string, config *tls.Config) string {
	t.Helper()
	config.NextProtos = []string{"h2"}
	return listen(t, func(client net.Conn) {
		server, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return
		}
		forward(client, server)
	})
}
