package login

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// browser opens addresses in the user's browser.
type browser struct{ getenv func(string) string }

// settle is how long a program that opens browsers may take to fail. One that runs longer is assumed to be the browser.
const settle = 2 * time.Second

func (b browser) open(ctx context.Context, address string) error {
	program, err := b.program(runtime.GOOS)
	if err != nil {
		return err
	}
	// Without a context: the browser outlives this process.
	command := exec.Command(program[0], withAddress(program[1:], address)...) //nolint:noctx // see above
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(settle):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// program returns the program and its arguments; the caller appends the address.
func (b browser) program(system string) ([]string, error) {
	if chosen := chosenBrowser(b.getenv("BROWSER"), system); len(chosen) > 0 {
		return chosen, nil
	}
	switch system {
	case "darwin":
		return []string{"/usr/bin/open"}, nil
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler"}, nil
	}
	if b.getenv("DISPLAY") == "" && b.getenv("WAYLAND_DISPLAY") == "" {
		return nil, errors.New("there is no graphical display")
	}
	return []string{"xdg-open"}, nil
}

// chosenBrowser returns the first existing program of BROWSER, a colon-separated list of paths that may contain spaces,
// or of commands with arguments. If none exists, it returns the first, so that starting it gives the error.
func chosenBrowser(value, system string) []string {
	entries := []string{value}
	if system != "windows" { // paths on Windows have colons
		entries = strings.Split(value, ":")
	}
	var first []string
	for _, entry := range entries {
		words := strings.Fields(entry)
		if len(words) == 0 {
			continue
		}
		if _, err := exec.LookPath(strings.TrimSpace(entry)); err == nil {
			return []string{strings.TrimSpace(entry)}
		}
		if _, err := exec.LookPath(words[0]); err == nil {
			return words
		}
		if first == nil {
			first = words
		}
	}
	return first
}

// withAddress replaces "%s" in the arguments with the address, or appends it.
func withAddress(arguments []string, address string) []string {
	var all []string
	placed := false
	for _, argument := range arguments {
		placed = placed || strings.Contains(argument, "%s")
		all = append(all, strings.ReplaceAll(argument, "%s", address))
	}
	if !placed {
		all = append(all, address)
	}
	return all
}
