package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// sizeDelay is how long a program with a terminal waits for the terminal's size.
const sizeDelay = 5 * time.Second

// ExecInContainer implements remotecommand.Executor: it runs a program next to the container's own. It ignores the
// names, because c is the container. The program is killed when the client disconnects.
func (c *container) ExecInContainer(
	ctx context.Context,
	_, _, _ string,
	args []string,
	in io.Reader,
	out, errOut io.WriteCloser,
	tty bool,
	resize <-chan remotecommand.TerminalSize,
	_ time.Duration,
) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	command := c.command(ctx, args)
	if tty {
		return exitError(runInTerminal(command, in, out, resize))
	}
	var stdin io.WriteCloser
	if in != nil {
		// Not command.Stdin, because Wait would also wait for the end of the client's input.
		var err error
		if stdin, err = command.StdinPipe(); err != nil {
			return err
		}
	}
	if out != nil {
		command.Stdout = out
	}
	if errOut != nil {
		command.Stderr = errOut
	}
	if err := command.Start(); err != nil {
		return err
	}
	if stdin != nil {
		go func() {
			_, _ = io.Copy(stdin, in)
			_ = stdin.Close()
		}()
	}
	return exitError(command.Wait())
}

// runInTerminal runs a program in a terminal that is connected to the client.
func runInTerminal(command *exec.Cmd, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) error {
	terminal, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("opening a terminal: %w", err)
	}
	var mu sync.Mutex // a size may arrive while the terminal is being closed
	closed := false
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		closed = true
		_ = terminal.Close()
	}()
	command.Stdin, command.Stdout, command.Stderr = slave, slave, slave
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // the terminal is its standard input
	// Start the program with the client's terminal size.
	select {
	case size, ok := <-resize:
		if ok {
			_ = pty.Setsize(terminal, windowSize(size))
		}
	case <-time.After(sizeDelay):
	}
	err = command.Start()
	_ = slave.Close()
	if err != nil {
		return err
	}
	go func() {
		for size := range resize {
			mu.Lock()
			if !closed {
				_ = pty.Setsize(terminal, windowSize(size))
			}
			mu.Unlock()
		}
	}()
	if in != nil {
		go func() { _, _ = io.Copy(terminal, in) }()
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(out, terminal) // ends with EIO when the last process has closed the terminal
	}()
	err = command.Wait()
	select {
	case <-copied:
	case <-time.After(outputDelay):
	}
	return err
}

func windowSize(size remotecommand.TerminalSize) *pty.Winsize {
	return &pty.Winsize{Cols: size.Width, Rows: size.Height}
}

// exitError converts an exit code to the error type that remotecommand sends to the client.
func exitError(err error) error {
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	case errors.As(err, &exit): // by a signal; shells use 128 plus its number, and 137 is the most common
		return utilexec.CodeExitError{Err: err, Code: 137}
	case errors.Is(err, exec.ErrWaitDelay), errors.Is(err, os.ErrClosed):
		return nil
	}
	return err
}

// AttachContainer implements remotecommand.Attacher: the container's own input, and its output from now on.
func (c *container) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser,
	_ bool, _ <-chan remotecommand.TerminalSize,
) error {
	begin := c.log.size()
	if in != nil {
		go func() { _, _ = io.Copy(c.stdin, in) }() // others may attach later, so it stays open
	}
	if out == nil {
		select {
		case <-c.ended:
		case <-ctx.Done():
		}
		return nil
	}
	return c.log.follow(ctx, begin, out)
}

// PortForward implements portforward.PortForwarder: it connects a stream and a port of this machine. Each side may
// close its half first.
func (c *container) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	dialed, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("connecting to port %d of the pod: %w", port, err)
	}
	conn := dialed.(*net.TCPConn)
	defer conn.Close() //nolint:errcheck // both directions have ended
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.CloseWrite()
	}()
	// The end of the server's output ends it, as in a container runtime.
	_, err = io.Copy(stream, conn)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	return err
}
