package oidclogin

import (
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// TestPageInBrowser renders the pages in headless Chromium and compares screenshots. UPDATE_GOLDEN=1 updates them.
func TestPageInBrowser(t *testing.T) {
	t.Parallel()
	good := page{user: "ann@example.com", cluster: "proxy.example.com", issuer: "https://issuer.example.com"}
	bad := page{
		problem: fmt.Errorf(
			"logging in to issuer %q: %w",
			"https://issuer.example.com",
			&refusal{code: "access_denied", description: "<script>alert(1)</script>"},
		),
	}
	for _, test := range []struct {
		name  string
		page  page
		dark  bool
		title string
	}{
		{name: "light", page: good, title: "You are logged in"},
		{name: "dark", page: good, dark: true, title: "You are logged in"},
		{name: "failed", page: bad, title: "You are not logged in"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				asked = append(asked, r.URL.Path)
				mu.Unlock()
				if r.URL.Path != callbackPath {
					http.NotFound(w, r)
					return
				}
				writePage(w, http.StatusOK, test.page)
			}))
			t.Cleanup(server.Close)
			shot := filepath.Join(t.TempDir(), "shot.png")
			scheme := "1"
			if test.dark {
				scheme = "0"
			}
			dom, log := browse(
				t,
				server.URL+callbackPath,
				"--screenshot="+shot,
				"--blink-settings=preferredColorScheme="+scheme,
			)
			if strings.Contains(log, "Content Security Policy") || strings.Contains(log, "Refused to") {
				t.Errorf("the browser complains:\n%s", log)
			}
			if !strings.Contains(dom, "<title>"+test.title+"</title>") || strings.Contains(dom, "<script") {
				t.Errorf("the page is not what it should be:\n%s", dom)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, path := range asked {
				if path != callbackPath && path != "/favicon.ico" {
					t.Errorf("the page asks for %s", path)
				}
			}
			compare(t, shot, filepath.Join("testdata", "page-"+test.name+".png"))
		})
	}
}

// browse opens address, and returns the document and the browser's log.
func browse(t *testing.T, address string, flags ...string) (dom, log string) {
	t.Helper()
	out, errOut := testkit.Chromium(t, address, append(flags, "--window-size=800,700")...)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), out + errOut
}

// compare compares the mean colours of 20x20 pixel blocks, to tolerate other fonts. A block may differ by a tenth of
// the range, and one in twenty blocks by more.
func compare(t *testing.T, got, want string) {
	t.Helper()
	shot, err := os.ReadFile(got)
	if err != nil {
		t.Fatalf("the browser took no picture: %v", err)
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := errors.Join(os.MkdirAll(filepath.Dir(want), 0o755), os.WriteFile(want, shot, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	a, b := blocks(t, got), blocks(t, want)
	if len(a) != len(b) {
		t.Fatalf("want %d blocks, got %d", len(b), len(a))
	}
	const tolerance = 0xffff / 10
	far := 0
	for i := range a {
		for channel := range a[i] {
			if d := a[i][channel] - b[i][channel]; d > tolerance || d < -tolerance {
				far++
				break
			}
		}
	}
	if far > len(a)/20 {
		t.Errorf("%d of %d blocks differ from %s", far, len(a), want)
	}
}

// blocks returns the mean colour of each block of a picture.
func blocks(t *testing.T, path string) [][3]int {
	t.Helper()
	const size = 20
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	picture, err := png.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	var found [][3]int
	bounds := picture.Bounds()
	for y := bounds.Min.Y; y+size <= bounds.Max.Y; y += size {
		for x := bounds.Min.X; x+size <= bounds.Max.X; x += size {
			found = append(found, mean(picture, image.Rect(x, y, x+size, y+size)))
		}
	}
	return found
}

func mean(picture image.Image, block image.Rectangle) [3]int {
	var sum [3]int
	for y := block.Min.Y; y < block.Max.Y; y++ {
		for x := block.Min.X; x < block.Max.X; x++ {
			r, g, b, _ := picture.At(x, y).RGBA()
			sum[0], sum[1], sum[2] = sum[0]+int(r), sum[1]+int(g), sum[2]+int(b)
		}
	}
	n := block.Dx() * block.Dy()
	return [3]int{sum[0] / n, sum[1] / n, sum[2] / n}
}
