package testkit

import (
	"bytes"
	"context"
	"os/exec"
	"testing"
	"time"
)

// Chromium opens address in a headless browser with additional flags, and returns its stdout and stderr. It skips the
// test if there is no browser, and with -short.
func Chromium(t *testing.T, address string, flags ...string) (out, errOut string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short leaves out what needs a browser")
	}
	var browser string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("needs a browser (Debian: apt-get install chromium fonts-dejavu-core)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // the machine may be busy
	defer cancel()
	common := []string{
		"--headless=new",
		"--no-sandbox",
		"--disable-gpu",
		"--disable-dev-shm-usage",
		"--hide-scrollbars",
		"--force-device-scale-factor=1",
		"--user-data-dir=" + t.TempDir(),
		"--no-first-run",
		"--disable-extensions",
		"--disable-background-networking",
		"--enable-logging=stderr",
		"--v=0",
	}
	command := exec.CommandContext(ctx, browser, append(append(common, flags...), address)...)
	command.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &stdout, &stderr)
	}
	return stdout.String(), stderr.String()
}
