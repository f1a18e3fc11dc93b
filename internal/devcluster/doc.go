// Package devcluster runs a real Kubernetes control plane (etcd, kube-apiserver and optionally kube-controller-manager)
// on loopback, for the demo, the tests and the benchmarks.
//
// It needs neither root nor a container runtime. Several clusters may run at once, in one process or in several: each
// has its own directory, certificates and ports.
//
//	cluster, err := devcluster.Start(ctx, devcluster.Options{})
//	if err != nil {
//		return err
//	}
//	defer cluster.Stop()
//
// The programs are in the directory in KUBEBUILDER_ASSETS, or in bin/controlplane of this repository, built by
// `make controlplane`; with KUBERNETES=1.34 in the environment, in bin/controlplane-1.34.
//
// # Cleanup
//
// Stop ends the programs in the right order. When the process ends without calling it, by os.Exit, a crash, Ctrl-C or
// kill -9, its clusters end, too: see guard. The programs are in separate process groups, so Ctrl-C in the terminal
// only reaches the caller, which can then stop the API server before etcd.
//
// # Limits of a cluster without nodes
//
// Pods are stored but not run; package kubelet is a fake node for tests in which pods have to respond. Without
// Options.ControllerManager there are no default service accounts, deleted namespaces stay in phase Terminating, and
// certificate signing requests are not signed.
package devcluster
