package devcluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/kubeversion"
)

// Options configures a cluster. The zero value is suitable for most tests.
type Options struct {
	// Dir is the directory for data, keys, kubeconfig and logs. It must be empty or not exist, and Stop does not remove
	// it. If Dir is "", a temporary directory is used, which Stop removes; a failed start keeps its logs.
	Dir string

	// Log receives a line for each step; nil discards them. The logs of the programs are files in the cluster's
	// directory.
	Log io.Writer

	// StartTimeout is the timeout of each program's start; zero means two minutes.
	StartTimeout time.Duration

	// AuditPolicy is an audit.k8s.io Policy (YAML or JSON). If set, the API server writes an audit log with one JSON
	// event per line to Cluster.AuditLog. An event is in the file before the response to its request.
	AuditPolicy []byte

	// DisableAnonymous makes the API server refuse requests without credentials. By default they are authenticated as
	// system:anonymous, as on most clusters.
	DisableAnonymous bool

	// ExtraAPIServerArgs are additional flags of the kube-apiserver, each as "--name=value". They replace flags that
	// this package sets.
	ExtraAPIServerArgs []string

	// ControllerManager also starts the kube-controller-manager: service accounts, namespace deletion, and signing of
	// certificate signing requests with the client CA.
	ControllerManager bool
}

const defaultStartTimeout = 2 * time.Minute

// complete validates the options and sets defaults. It reports whether the directory is temporary.
func (o Options) complete() (completed Options, temporary bool, err error) {
	for _, arg := range o.ExtraAPIServerArgs {
		if !strings.HasPrefix(arg, "--") || flagName(arg) == "" {
			return o, false, fmt.Errorf("extra API server argument %q is not of the form \"--name=value\"", arg)
		}
	}
	if o.StartTimeout < 0 {
		return o, false, fmt.Errorf("start timeout %s is negative", o.StartTimeout)
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = defaultStartTimeout
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Dir == "" {
		o.Dir, err = os.MkdirTemp("", "pinniped-devcluster-")
		if err != nil {
			return o, false, fmt.Errorf("making the cluster's directory: %w", err)
		}
		return o, true, nil
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, false, fmt.Errorf("finding the cluster's directory: %w", err)
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return o, false, fmt.Errorf("reading the cluster's directory: %w", err)
	}
	if len(entries) > 0 {
		return o, false, fmt.Errorf("directory %q is not empty: remove it, or name another one", o.Dir)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return o, false, fmt.Errorf("making the cluster's directory: %w", err)
	}
	return o, false, nil
}

// mergeArgs returns the defaults that extra does not set, followed by extra.
func mergeArgs(defaults, extra []string) []string {
	return append(slices.DeleteFunc(defaults, func(arg string) bool {
		return slices.ContainsFunc(extra, func(other string) bool { return flagName(other) == flagName(arg) })
	}), extra...)
}

// flagName returns "name" for "--name=value" and "--name".
func flagName(arg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
	return name
}

const loopbackAddress = "127.0.0.1"

// loopbackURL is the URL of a program on a port of this cluster.
func loopbackURL(p *port) string { return fmt.Sprintf("https://%s:%d", loopbackAddress, p.number) }

func (c *Cluster) etcdArgs() []string {
	client, peer := loopbackURL(c.ports.etcd), loopbackURL(c.ports.etcdPeer)
	return []string{
		"--name=default",
		"--data-dir=" + filepath.Join(c.dir, "etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--cert-file=" + c.pki.path("etcd.crt"),
		"--key-file=" + c.pki.path("etcd.key"),
		"--trusted-ca-file=" + c.pki.path("etcd-ca.crt"),
		"--client-cert-auth=true",
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--peer-cert-file=" + c.pki.path("etcd.crt"),
		"--peer-key-file=" + c.pki.path("etcd.key"),
		"--peer-trusted-ca-file=" + c.pki.path("etcd-ca.crt"),
		"--peer-client-cert-auth=true",
		// The gateway would call etcd with its serving certificate, and is not used.
		"--enable-grpc-gateway=false",
		// Unsynced writes are only lost in a power cut, not when the process is killed.
		"--unsafe-no-fsync=true",
		"--socket-reuse-port=true", // see reservePort
	}
}

func (c *Cluster) apiServerArgs() []string {
	args := []string{
		"--bind-address=" + loopbackAddress,
		fmt.Sprintf("--secure-port=%d", c.ports.apiServer.number),
		"--permit-port-sharing=true",
		"--advertise-address=" + loopbackAddress,
		// Endpoints of the Service "kubernetes" must not be on loopback.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceRange,
		"--tls-cert-file=" + c.pki.path("apiserver.crt"),
		"--tls-private-key-file=" + c.pki.path("apiserver.key"),

		"--etcd-servers=" + loopbackURL(c.ports.etcd),
		"--etcd-cafile=" + c.pki.path("etcd-ca.crt"),
		"--etcd-certfile=" + c.pki.path("etcd-client.crt"),
		"--etcd-keyfile=" + c.pki.path("etcd-client.key"),
		"--etcd-prefix=/registry",

		"--client-ca-file=" + c.pki.path("client-ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.pki.path("service-account.pub"),
		"--service-account-signing-key-file=" + c.pki.path("service-account.key"),
		"--authorization-mode=RBAC",

		// How aggregated APIs authenticate the API server.
		"--requestheader-client-ca-file=" + c.pki.path("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.pki.path("front-proxy-client.crt"),
		"--proxy-client-key-file=" + c.pki.path("front-proxy-client.key"),

		// For connections to kubelets: see KubeletTLS. An API server refuses to call loopback addresses in some places,
		// but not names.
		"--kubelet-preferred-address-types=Hostname",
		"--kubelet-certificate-authority=" + c.pki.path("serving-ca.crt"),
		"--kubelet-client-certificate=" + c.pki.path("kubelet-client.crt"),
		"--kubelet-client-key=" + c.pki.path("kubelet-client.key"),

		"--allow-privileged=true",
		"--profiling=false",
	}
	if kubeversion.UIDHeaders.In(c.version) {
		args = append(args, "--requestheader-uid-headers=X-Remote-Uid")
	}
	if !c.options.ControllerManager {
		// No controller creates default service accounts here, and this plugin would make each Pod wait for one.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	if c.options.DisableAnonymous {
		args = append(args, "--anonymous-auth=false")
	}
	if c.options.AuditPolicy != nil {
		args = append(args,
			"--audit-policy-file="+c.auditPolicyPath(),
			"--audit-log-path="+c.AuditLog(),
			"--audit-log-maxsize=0", // never rotated: readers need all of it
			"--audit-log-mode=blocking-strict")
	}
	return mergeArgs(args, c.options.ExtraAPIServerArgs)
}

func (c *Cluster) controllerManagerArgs(kubeconfig string) []string {
	return []string{
		"--bind-address=" + loopbackAddress,
		fmt.Sprintf("--secure-port=%d", c.ports.controllerManager.number),
		"--permit-port-sharing=true",
		"--tls-cert-file=" + c.pki.path("apiserver.crt"),
		"--tls-private-key-file=" + c.pki.path("apiserver.key"),
		"--kubeconfig=" + kubeconfig,
		"--use-service-account-credentials=true",
		"--leader-elect=false",
		"--root-ca-file=" + c.pki.path("serving-ca.crt"),
		"--service-account-private-key-file=" + c.pki.path("service-account.key"),
		"--cluster-signing-cert-file=" + c.pki.path("client-ca.crt"),
		"--cluster-signing-key-file=" + c.pki.path("client-ca.key"),
	}
}
