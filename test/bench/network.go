package main

import (
	"context"
	"net"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

// Where the parts of a run are.
const (
	networkAuto       = "auto"
	networkLoopback   = "loopback"
	networkNamespaces = "namespaces"
)

// insideVariable is set for the process that runs in the API server's network namespace.
const insideVariable = "PINNIPED_BENCH_INSIDE"

// The addresses of the parts in their private network, from the range for benchmarks of RFC 2544.
const (
	serverAddress = "198.18.0.1"
	proxyAddress  = "198.18.0.2"
	clientAddress = "198.18.0.3"
	prefixLength  = 24
)

// network is what lies between client, proxy and API server: each is in a network namespace, as pods of a node are,
// joined by a bridge in the API server's, which is also this process's. A nil network is loopback.
type network struct {
	client namespaceHandle
	proxy  namespaceHandle
	here   namespaceHandle
}

func (n *network) String() string {
	if n == nil {
		return networkLoopback
	}
	return networkNamespaces
}

// listenAddress is where the webhooks of this process are for the agent.
func (n *network) listenAddress() string {
	if n == nil {
		return "127.0.0.1"
	}
	return serverAddress
}

// apiServerArgs let the API server listen where the others reach it. In its namespace nothing else is connected.
func (n *network) apiServerArgs() []string {
	if n == nil {
		return nil
	}
	return []string{"--bind-address=0.0.0.0"}
}

// place is where agents run.
func (n *network) place(apiServer string) (*devinstall.Place, error) {
	if n == nil {
		return nil, nil
	}
	enter, err := n.enter(n.proxy)
	if err != nil {
		return nil, err
	}
	address, err := n.serverURL(apiServer)
	return &devinstall.Place{Address: proxyAddress, Server: address, Enter: enter}, err
}

// ofClient is the configuration of a client that reaches the API server from its own namespace.
func (n *network) ofClient(config *rest.Config) (*rest.Config, error) {
	if n == nil {
		return config, nil
	}
	config = rest.CopyConfig(config)
	var err error
	config.Host, err = n.serverURL(config.Host)
	config.ServerName = devinstall.ServerName
	config.Dial = n.dial
	return config, err
}

// serverURL is the API server's address in the network, of that on loopback.
func (n *network) serverURL(loopback string) (string, error) {
	_, port, err := net.SplitHostPort(hostOf(loopback))
	return "https://" + net.JoinHostPort(serverAddress, port), err
}

func hostOf(address string) string { return address[len("https://"):] }

// dialer returns what connects from the client's namespace, nil on loopback.
func (n *network) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	if n == nil {
		return nil
	}
	return n.dial
}
