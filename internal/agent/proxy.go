package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/pinniped-toolkit/pinniped/internal/proxy"
)

// proxyRunner starts and stops the impersonation proxy of this replica as the CredentialIssuer specifies. It is safe
// for concurrent use.
type proxyRunner struct {
	life    context.Context //nolint:containedctx // the proxy outlives the reconciliation that starts it
	address string          // to listen on
	options proxy.Options

	mu      sync.Mutex
	running *runningProxy
}

type runningProxy struct {
	server *proxy.Server
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended, after err is set
	err    error
}

// Start starts the proxy unless it is running. It returns an error when it cannot, or, once, when the proxy ended by
// itself since the last call.
func (p *proxyRunner) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil {
		select {
		case <-p.running.done:
			err := p.running.err
			p.running = nil
			if err == nil {
				err = errors.New("unexpected shutdown of proxy server")
			}
			return err
		default:
			return nil
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.address)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", p.address, err)
	}
	life, cancel := context.WithCancel(p.life)
	options := p.options
	options.Listener = listener
	server, err := proxy.New(life, options)
	if err != nil {
		cancel()
		return errors.Join(err, listener.Close())
	}
	running := &runningProxy{server: server, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(running.done)
		running.err = server.Run(life)
	}()
	p.running = running
	return nil
}

// Stop stops the proxy and waits until its requests have finished.
func (p *proxyRunner) Stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return nil
	}
	p.running.cancel()
	select {
	case <-p.running.done:
		err := p.running.err
		p.running = nil
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait waits until the proxy, if it is running, has ended. Call it at the end of the process, after life has ended.
func (p *proxyRunner) Wait() {
	p.mu.Lock()
	running := p.running
	p.mu.Unlock()
	if running != nil {
		<-running.done
	}
}

// Serving reports whether the proxy is running.
func (p *proxyRunner) Serving() bool { return p.server() != nil }

// Ready returns nil when the proxy can serve requests, and otherwise the reason.
func (p *proxyRunner) Ready() error {
	server := p.server()
	if server == nil {
		return errors.New("the impersonation proxy is not listening")
	}
	return server.Ready()
}

// server returns the proxy, or nil when it is not running.
func (p *proxyRunner) server() *proxy.Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return nil
	}
	select {
	case <-p.running.done:
		return nil
	default:
		return p.running.server
	}
}
