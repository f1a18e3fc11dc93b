// Package fleet puts new CA bundles into the kubeconfigs of many clusters: it finds out which clusters they lead to,
// asks each of them once what it advertises, and changes the kubeconfigs where a fleet keeps them.
//
// Every place that has kubeconfigs is a Place, one file each: files, contexts of one big kubeconfig, and Secrets of
// Cluster API, Argo CD and Flux. A cluster is asked at its own endpoint, verified by the CA bundle that a kubeconfig
// has (see internal/handover), or by an administrator's kubeconfig. One cluster that does not answer stops no other.
package fleet
