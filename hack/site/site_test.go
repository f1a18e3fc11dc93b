package main

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestSite builds the website, which fails for a broken link.
func TestSite(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	if err := run(filepath.Join("..", ".."), out); err != nil {
		t.Fatal(err)
	}
	// Every relative link and picture in the pages is a file of the site.
	reference := regexp.MustCompile(`(?:href|src)="([^"#?]+)`)
	pages := 0
	err := filepath.WalkDir(out, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".html") {
			return err
		}
		pages++
		content, err := os.ReadFile(path)
		for _, match := range reference.FindAllStringSubmatch(string(content), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), filepath.FromSlash(match[1]))); err != nil {
				t.Errorf("%s leads to %q: %v", path, match[1], err)
			}
		}
		return err
	})
	if _, err := os.Stat(filepath.Join(out, "reference", "cli", "pinniped_ip-tls_set.html")); err != nil {
		t.Error(err)
	}
	if err != nil || pages < 50 {
		t.Errorf("%d pages, %v", pages, err)
	}
	page, err := os.ReadFile(filepath.Join(out, "howto", "rotate-ca.html"))
	for _, part := range []string{
		`rel="prev" href="../howto/external-certificate.html"`, `rel="next" href="../howto/certificate-trouble.html"`,
		`<a href="#2-update-kubeconfigs">2. Update kubeconfigs</a>`, `<td data-column="certificate in service">`,
	} {
		if !strings.Contains(string(page), part) {
			t.Errorf("rotate-ca.html has no %s: %v", part, err)
		}
	}
	index, err := os.ReadFile(filepath.Join(out, "search-index.js"))
	if err != nil || !strings.Contains(string(index), `"a":"howto/rotate-ca.html#2-update-kubeconfigs"`) {
		t.Errorf("the search does not know a heading: %v", err)
	}
}

func TestManPages(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "man")
	if err := writeManPages(folder); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(folder, "pinniped-ip-tls-set.1"))
	for _, part := range []string{".SH SYNOPSIS", ".SH EXAMPLE", "--secret"} {
		if !strings.Contains(strings.ReplaceAll(string(page), `\-`, "-"), part) {
			t.Errorf("the manual page has no %s: %v", part, err)
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, content := range map[string]string{
		"README.md": "# A\n[good](docs/b.md#two) [no file](docs/c.md) [no heading](docs/b.md#three) [away](https://example.com)\n" +
			"## Documentation\n### Start\n[B](docs/b.md)\n",
		"CONTRIBUTING.md": "# C\n![no picture](docs/none.svg)\n",
		"docs/b.md":       "# B\n## Two\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := run(root, filepath.Join(root, "out"))
	if err == nil {
		t.Fatal("no error")
	}
	want := "CONTRIBUTING.md: README.md has no link to it\n" +
		"README.md: link to \"docs/c.md\": there is no such file\n" +
		"README.md: link to \"docs/b.md#three\": there is no such heading\n" +
		"CONTRIBUTING.md: link to \"docs/none.svg\": there is no such file"
	if err.Error() != want {
		t.Errorf("got %q", err)
	}
}

// TestContrast computes the contrasts of WCAG 2 level AA: 4.5:1 for text, 3:1 for the borders of controls.
func TestContrast(t *testing.T) {
	t.Parallel()
	css, err := assets.ReadFile("assets/site.css")
	if err != nil {
		t.Fatal(err)
	}
	themes := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllStringSubmatch(string(css), -1)
	if len(themes) != 2 {
		t.Fatalf("%d themes", len(themes))
	}
	for i, theme := range themes {
		colours := map[string]string{}
		for _, match := range regexp.MustCompile(`--(\w+): #(\w{6});`).FindAllStringSubmatch(theme[1], -1) {
			colours[match[1]] = match[2]
		}
		for _, back := range []string{"back", "panel", "code"} {
			for front, least := range map[string]float64{"text": 4.5, "quiet": 4.5, "link": 4.5, "line": 3} {
				if front == "line" && back != "back" {
					continue
				}
				if got := contrast(t, colours[front], colours[back]); got < least {
					t.Errorf("theme %d: %s on %s is %.2f:1, want %.1f:1", i, front, back, got, least)
				}
			}
		}
	}
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// luminance returns the WCAG relative luminance of an sRGB colour.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		value, err := strconv.ParseUint(colour[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		channel := float64(value) / 255
		if channel <= 0.04045 {
			channel /= 12.92
		} else {
			channel = math.Pow((channel+0.055)/1.055, 2.4)
		}
		sum += weight * channel
	}
	return sum
}
