package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/pinniped-toolkit/pinniped/internal/proxy"
)

// proxyRunner starts and stops the impersonation proxy of this replica as the CredentialIssuer says. It is safe for
// concurrent use.
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
	done   chan struct{} // closed when it ended, with its error in err
	err    error
}

// Start makes the proxy listen unless it does already. It returns an error when it cannot, or, once, when it ended
// by itself since the last call.
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

// Stop makes the proxy finish what it is doing, and waits for that.
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

// Wait returns when the proxy, if one runs, has ended. It is for the end of the process, after life is over.
func (p *proxyRunner) Wait() {
	p.mu.Lock()
	running := p.running
	p.mu.Unlock()
	if running != nil {
		<-running.done
	}
}

// Serving reports whether the proxy listens.
func (p *proxyRunner) Serving() bool { return p.server() != nil }

// Ready returns nil when the proxy can serve requests, and otherwise why it cannot.
func (p *proxyRunner) Ready() error {
	server := p.server()
	if server == nil {
		return errors.New("the impersonation proxy does not listen")
	}
	return server.Ready()
}

// server returns the proxy, nil when it does not listen.
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
