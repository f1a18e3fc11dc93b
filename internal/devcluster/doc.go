// Package devcluster runs a real Kubernetes control plane (etcd, kube-apiserver and, if asked for, the controller
// manager) on loopback, for the demo, the tests and the benchmarks.
//
// It needs no root and no container runtime. Several clusters may run at once, in one process or in many: each has its
// own directory, certificates and ports.
//
//	cluster, err := devcluster.Start(ctx, devcluster.Options{})
//	if err != nil {
//		return err
//	}
//	defer cluster.Stop()
//
// The programs come from the folder in KUBEBUILDER_ASSETS, or from bin/controlplane in this repository, which
// `make controlplane` fills; with KUBERNETES=1.34 in the environment, from bin/controlplane-1.34.
//
// # Nothing is left behind
//
// Stop ends the programs in the right order. A process that ends without calling it, be it by os.Exit, a crash, Ctrl-C
// or kill -9, takes its clusters with it: see guard. The programs are in process groups of their own, so a Ctrl-C in
// the terminal reaches the caller alone, which can then stop the API server before etcd.
//
// # What a cluster without nodes does not do
//
// Pods are stored but never run; the package kubelet stands in for a node where pods have to answer. Without
// Options.ControllerManager there are no default service accounts, deleted namespaces stay in phase Terminating, and
// certificate signing requests are not signed.
package devcluster
