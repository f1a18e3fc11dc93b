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

// settle is how long a program that opens browsers may take to fail. One that runs longer is taken for the browser
// itself.
const settle = 2 * time.Second

func (b browser) open(ctx context.Context, address string) error {
	program, err := b.program(runtime.GOOS)
	if err != nil {
		return err
	}
	// Not CommandContext: the browser outlives this process.
	command := exec.Command(program[0], append(program[1:], address)...) //nolint:noctx // see above
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

// program returns the program, with its first arguments, to which the address is appended.
func (b browser) program(system string) ([]string, error) {
	if chosen := strings.Fields(b.getenv("BROWSER")); len(chosen) > 0 {
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
