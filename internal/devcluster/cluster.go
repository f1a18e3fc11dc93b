package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// errStopped is the error of methods that need a running cluster.
var errStopped = errors.New("the cluster is stopped")

// Cluster is a running control plane. It is safe for concurrent use.
type Cluster struct {
	options   Options
	dir       string
	temporary bool // Stop removes dir
	pki       *pki
	ports     ports
	finder    finder
	version   *version.Version
	guard     *guard
	admin     *rest.Config
	dynamic   dynamic.Interface
	probeAPI  *prober

	etcd              *Program
	apiServer         *Program
	controllerManager *Program // nil without Options.ControllerManager

	mu       sync.Mutex // never held while a program starts
	stopped  bool
	stopErr  error
	programs []*Program // of StartProgram
	lent     []*port    // of ReservePort
}

type ports struct {
	etcd, etcdPeer, apiServer, controllerManager *port
}

// Start starts a cluster and returns when its API is ready: /readyz succeeds, the namespaces default and kube-system
// exist, and so does the ConfigMap from which aggregated APIs read how to authenticate the API server.
//
// ctx only limits the start. The cluster runs until Stop is called or this process ends. The error for a program that
// did not start has the end of its log, and the path of the whole log. A MissingProgramError says that a program is not
// built yet.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	return start(ctx, options, systemFinder())
}

func start(ctx context.Context, options Options, programs finder) (*Cluster, error) {
	began := time.Now()
	names := []string{etcdProgram, apiServerProgram}
	if options.ControllerManager {
		names = append(names, controllerManagerProgram)
	}
	paths := map[string]string{}
	for _, name := range names {
		path, err := programs.program(name)
		if err != nil {
			return nil, fmt.Errorf("starting the local control plane: %w", err)
		}
		paths[name] = path
	}
	options, temporary, err := options.complete()
	if err != nil {
		return nil, fmt.Errorf("starting the local control plane: %w", err)
	}
	c := &Cluster{options: options, dir: options.Dir, temporary: temporary, finder: programs}
	if err := c.bringUp(ctx, paths, began); err != nil {
		err = fmt.Errorf("starting the local control plane: %w", err)
		return nil, errors.Join(err, c.giveUp())
	}
	c.log("The API server answers at %s after %.1f s", c.URL(), time.Since(began).Seconds())
	return c, nil
}

// bringUp starts the programs. On an error, its caller start cleans up.
func (c *Cluster) bringUp(ctx context.Context, paths map[string]string, now time.Time) error {
	var err error
	if c.version, err = versionOf(ctx, paths[apiServerProgram]); err != nil {
		return err
	}
	if err := os.MkdirAll(c.logDir(), 0o700); err != nil {
		return fmt.Errorf("making the directory of the logs: %w", err)
	}
	if c.pki, err = newPKI(filepath.Join(c.dir, "pki"), now); err != nil {
		return err
	}
	if c.options.AuditPolicy != nil {
		if err := os.WriteFile(c.auditPolicyPath(), c.options.AuditPolicy, 0o600); err != nil {
			return fmt.Errorf("writing the audit policy: %w", err)
		}
	}
	for _, p := range []**port{&c.ports.etcd, &c.ports.etcdPeer, &c.ports.apiServer, &c.ports.controllerManager} {
		if *p, err = reservePort(); err != nil {
			return err
		}
	}
	if err := c.makeClients(); err != nil {
		return err
	}
	if err := c.WriteKubeconfig(c.AdminKubeconfig(), c.admin); err != nil {
		return err
	}
	toRemove := ""
	if c.temporary {
		toRemove = c.dir
	}
	if c.guard, err = newGuard(toRemove); err != nil {
		return err
	}
	return c.startPrograms(ctx, paths)
}

func (c *Cluster) startPrograms(ctx context.Context, paths map[string]string) error {
	etcdProbe, err := newProber(loopbackURL(c.ports.etcd), c.pki.etcd.CertPEM(), c.pki.etcdClient)
	if err != nil {
		return err
	}
	etcdReady := func(ctx context.Context) error { return etcdProbe.check(ctx, "/health") }
	if err := c.startComponent(ctx, &c.etcd, etcdProgram, paths[etcdProgram], c.etcdArgs(), etcdReady); err != nil {
		return err
	}
	err = c.startComponent(ctx, &c.apiServer, apiServerProgram, paths[apiServerProgram], c.apiServerArgs(), c.apiReady)
	if err != nil || !c.options.ControllerManager {
		return err
	}
	return c.startControllerManager(ctx, paths[controllerManagerProgram])
}

func (c *Cluster) startControllerManager(ctx context.Context, path string) error {
	identity, err := c.User("system:kube-controller-manager")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(c.dir, "controller-manager.kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, identity); err != nil {
		return err
	}
	probe, err := newProber(loopbackURL(c.ports.controllerManager), c.pki.serving.CertPEM(), nil)
	if err != nil {
		return err
	}
	ready := func(ctx context.Context) error {
		if err := probe.check(ctx, "/healthz"); err != nil {
			return err
		}
		return c.probeAPI.check(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
	}
	args := c.controllerManagerArgs(kubeconfig)
	return c.startComponent(ctx, &c.controllerManager, controllerManagerProgram, path, args, ready)
}

// startComponent starts a program of the control plane. started is the Cluster's field for it.
func (c *Cluster) startComponent(
	ctx context.Context, started **Program, name, path string, args []string, ready func(context.Context) error,
) error {
	c.log("Starting %s (%s)", name, path)
	// fips140=only is for pinniped's programs: etcd derives IDs with SHA-1
	*started = c.newProgram(ProgramOptions{Name: name, Path: path, Args: args, Env: []string{"GODEBUG="}, Ready: ready})
	return (*started).start(ctx)
}

// apiReady is nil when the API server responds and has created the objects that clients rely on.
func (c *Cluster) apiReady(ctx context.Context) error {
	for _, path := range []string{
		"/readyz",
		"/api/v1/namespaces/default",
		"/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
	} {
		if err := c.probeAPI.check(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the programs, the API server before etcd, and removes a temporary directory of the cluster. Further calls
// do nothing and return the same error.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return c.stopErr
	}
	c.log("Stopping the local control plane")
	c.stopErr = c.release()
	if c.temporary && c.stopErr == nil {
		if err := os.RemoveAll(c.dir); err != nil {
			c.stopErr = fmt.Errorf("removing the cluster's directory: %w", err)
		}
	}
	return c.stopErr
}

// giveUp cleans up after a failed start. In a temporary directory, it keeps the logs, which the error names.
func (c *Cluster) giveUp() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	started := c.etcd != nil
	if err := c.release(); err != nil {
		return err
	}
	if !c.temporary {
		return nil
	}
	if !started {
		return os.RemoveAll(c.dir)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if path := filepath.Join(c.dir, entry.Name()); path != c.logDir() {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// release stops all programs and releases the ports. The caller must hold c.mu.
func (c *Cluster) release() error {
	c.stopped = true
	var errs []error
	for _, program := range append(slices.Clone(c.programs), c.controllerManager, c.apiServer, c.etcd) {
		if program != nil {
			errs = append(errs, program.close())
		}
	}
	err := errors.Join(errs...)
	if c.guard != nil {
		c.guard.dismiss()
	}
	for _, p := range append(
		slices.Clone(c.lent), c.ports.etcd, c.ports.etcdPeer, c.ports.apiServer, c.ports.controllerManager,
	) {
		if p != nil {
			p.release()
		}
	}
	return err
}

// StopAPIServer stops the API server but not etcd. Clients get no connection until RestartAPIServer. It does nothing if
// the API server is not running.
func (c *Cluster) StopAPIServer() error { return c.apiServer.Stop() }

// StopEtcd stops etcd but not the API server, which then responds with errors or not at all until RestartEtcd. It does
// nothing if etcd is not running.
func (c *Cluster) StopEtcd() error { return c.etcd.Stop() }

// StopControllerManager stops the kube-controller-manager, which requires Options.ControllerManager. The cluster then
// no longer signs certificates.
func (c *Cluster) StopControllerManager() error { return c.controllerManager.Stop() }

// RestartAPIServer stops the API server if it is running, starts it on the same port, and returns when it is ready.
// Certificates and data are kept.
func (c *Cluster) RestartAPIServer(ctx context.Context) error { return c.apiServer.Restart(ctx) }

// RestartEtcd stops etcd if it is running, and starts it with its data on the same port. It returns when etcd is ready
// and, if the API server is running, when that is ready again.
func (c *Cluster) RestartEtcd(ctx context.Context) error {
	if err := c.etcd.Restart(ctx); err != nil {
		return err
	}
	apiServer := c.apiServer.latest()
	if !apiServer.running() {
		return nil
	}
	if err := c.apiServer.waitReady(ctx, apiServer); err != nil {
		return fmt.Errorf("restarting etcd: the API server did not recover: %w", c.apiServer.explain(err, 0))
	}
	return nil
}

// Dir returns the cluster's directory.
func (c *Cluster) Dir() string { return c.dir }

// URL returns the API server's address, such as "https://127.0.0.1:41234". It stays the same across restarts.
func (c *Cluster) URL() string { return loopbackURL(c.ports.apiServer) }

// Version returns the version of the kube-apiserver, such as 1.34.4.
func (c *Cluster) Version() *version.Version { return c.version }

// CABundle returns the PEM bundle that verifies the API server's serving certificate.
func (c *Cluster) CABundle() []byte { return c.pki.serving.CertPEM() }

// ClientCA returns the CA whose client certificates the API server accepts.
func (c *Cluster) ClientCA() *certs.CA { return c.pki.client }

// AuditLog returns the path of the API server's audit log, with one JSON event per line. It does not exist without
// Options.AuditPolicy.
func (c *Cluster) AuditLog() string { return filepath.Join(c.logDir(), "audit.log") }

func (c *Cluster) auditPolicyPath() string { return filepath.Join(c.dir, "audit-policy.yaml") }

func (c *Cluster) logDir() string { return filepath.Join(c.dir, "logs") }

func (c *Cluster) log(format string, args ...any) {
	// A failure to write the log must not fail the start.
	_, _ = fmt.Fprintf(c.options.Log, format+"\n", args...)
}

// APIServerPID returns the process ID of the kube-apiserver's latest start.
func (c *Cluster) APIServerPID() int { return c.apiServer.PID() }
