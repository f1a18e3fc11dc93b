package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

type namespaceHandle = netns.NsHandle

// rerunInside starts this program once more with the same arguments, in a network namespace of its own, and returns
// with which code it ended. The namespaces vanish with the processes in them, however those end.
func rerunInside(args []string, out, errOut io.Writer) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	inside := exec.Command(self, args...) //nolint:noctx // it is told by a signal, and cleans up
	inside.Env = append(os.Environ(), insideVariable+"=1")
	inside.Stdout, inside.Stderr = out, errOut
	inside.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := inside.Start(); err != nil {
		return 0, fmt.Errorf("making a network namespace: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case one := <-signals:
				_ = inside.Process.Signal(one)
			case <-ended:
				return
			}
		}
	}()
	err = inside.Wait()
	var code *exec.ExitError
	if errors.As(err, &code) {
		return code.ExitCode(), nil
	}
	return exitDone, err
}

// mayMakeNamespaces returns nil if this process may make network namespaces and join them.
func mayMakeNamespaces() error {
	if _, err := exec.LookPath("nsenter"); err != nil {
		return fmt.Errorf("looking for a program of util-linux: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		made, err := netns.New()
		if err == nil {
			err = made.Close()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("making a network namespace: %w", err)
	}
	return nil
}

// newNetwork joins this process's namespace, which is new, with two others.
func newNetwork() (*network, error) {
	n := &network{}
	var err error
	if n.here, err = netns.Get(); err != nil {
		return nil, fmt.Errorf("finding the network namespace: %w", err)
	}
	bridge := &netlink.Bridge{LinkAttrs: attributesOf("bench")}
	if err := errors.Join(raise("lo"), netlink.LinkAdd(bridge), addAddress("bench", serverAddress)); err != nil {
		return nil, fmt.Errorf("making a bridge: %w", err)
	}
	for _, one := range []struct {
		name, address string
		handle        *namespaceHandle
	}{{"proxy", proxyAddress, &n.proxy}, {"client", clientAddress, &n.client}} {
		if err := n.join(bridge, one.name, one.address, one.handle); err != nil {
			return nil, fmt.Errorf("joining the network of the %s: %w", one.name, err)
		}
	}
	return n, nil
}

func attributesOf(name string) netlink.LinkAttrs {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	return attributes
}

func (n *network) join(bridge netlink.Link, name, address string, handle *namespaceHandle) error {
	runtime.LockOSThread()
	made, err := netns.New()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	*handle = made
	if err := netns.Set(n.here); err != nil {
		return err // the thread stays locked, so that no other goroutine runs in the wrong namespace
	}
	runtime.UnlockOSThread()
	attributes := attributesOf(name)
	attributes.MasterIndex = bridge.Attrs().Index
	pair := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsFd(made)}
	if err := errors.Join(netlink.LinkAdd(pair), raise(name)); err != nil {
		return err
	}
	return n.in(made, func() error { return errors.Join(raise("lo"), addAddress("eth0", address)) })
}

func raise(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func addAddress(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(address + "/" + strconv.Itoa(prefixLength))
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, parsed), netlink.LinkSetUp(link))
}

// in calls do in another namespace.
func (n *network) in(namespace namespaceHandle, do func() error) error {
	runtime.LockOSThread()
	if err := netns.Set(namespace); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering a network namespace: %w", err)
	}
	err := do()
	if back := netns.Set(n.here); back != nil {
		return errors.Join(err, back) // the thread stays locked, so that no other goroutine runs in the wrong namespace
	}
	runtime.UnlockOSThread()
	return err
}

// dial connects from the client's namespace. A socket stays in the namespace in which it was made.
func (n *network) dial(ctx context.Context, network, address string) (connection net.Conn, err error) {
	enterErr := n.in(n.client, func() error {
		connection, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return nil
	})
	return connection, errors.Join(err, enterErr)
}

// enter is the command that runs a program in a namespace: the arguments before the program's own.
func (n *network) enter(namespace namespaceHandle) ([]string, error) {
	program, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, fmt.Errorf("looking for a program of util-linux: %w", err)
	}
	return []string{program, fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), int(namespace))}, nil
}
