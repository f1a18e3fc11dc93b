package main

import (
	"fmt"
	"html"
	"html/template"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

var complaints = regexp.MustCompile(`(?s)<pre id="wrong">(.*?)</pre>`)

// finds maps texts that people paste into the search to the expected first result.
var finds = map[string]string{
	"x509: certificate signed by unknown authority": "howto/certificate-trouble.html#what-clients-print",
	`Unable to connect to the server: tls: failed to verify certificate: x509: certificate is valid for 10.0.0.1, not api.example.com`: "" +
		"howto/certificate-trouble.html#what-clients-print",
	"Unable to connect to the server": "howto/certificate-trouble.html#what-clients-print",
	"error: NameNotCovered":           "reference/cli/checks.html#namenotcovered",
	"JWTAuthenticator":                "reference/authenticators.html",
	"pinniped ip-tls set":             "reference/cli/pinniped_ip-tls_set.html",
	"uninstall":                       "howto/uninstall.html",
	"get started":                     "getting-started.html",
	"exit code 6":                     "reference/exit-codes.html",
}

// TestInBrowser renders every page at phone and desktop width, in both themes: no page scrolls sideways, scrollable
// elements are reachable by keyboard, touch targets are large enough, and text has WCAG AA contrast. It also checks the
// search.
func TestInBrowser(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out what needs a browser")
	}
	out := t.TempDir()
	if err := run(filepath.Join("..", ".."), out); err != nil {
		t.Fatal(err)
	}
	var pages []string
	err := filepath.WalkDir(out, func(path string, _ os.DirEntry, err error) error {
		if page, errRelative := filepath.Rel(out, path); strings.HasSuffix(path, ".html") {
			pages = append(pages, "/"+filepath.ToSlash(page))
			return errRelative
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	look := template.Must(template.ParseFiles(filepath.Join("testdata", "look.html")))
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(out)))
	mux.HandleFunc("/look", func(w http.ResponseWriter, _ *http.Request) {
		if err := look.Execute(w, map[string]any{"Pages": pages, "Finds": finds}); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	for scheme, name := range []string{"dark", "light"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			document, log := testkit.Chromium(t, server.URL+"/look", "--dump-dom", "--window-size=1300,1000",
				"--virtual-time-budget=3600000", fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme))
			if seen := fmt.Sprintf(`data-seen="%d pages, %s"`, len(pages), name); !strings.Contains(document, seen) {
				t.Fatalf("the browser did not come to the end (%s):\n%s", seen, log)
			}
			if wrong := complaints.FindStringSubmatch(document); wrong == nil || wrong[1] != "" {
				t.Errorf("in a browser:\n%s", html.UnescapeString(fmt.Sprint(wrong)))
			}
		})
	}
}
