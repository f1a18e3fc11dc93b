package devcluster

import (
	"fmt"
	"path/filepath"

	"github.com/pinniped-toolkit/pinniped/internal/kubeversion"
)

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
