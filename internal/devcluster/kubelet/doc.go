// Package kubelet stands in for a node of a devcluster, so that exec, attach, logs and port-forward have somewhere to
// go: a Node object, and behind it an HTTPS server on loopback that speaks the kubelet's protocols by the kubelet's
// own streaming library.
//
// A container is a process of this machine: exec starts another one beside it, and a port of the pod is a port of
// 127.0.0.1. Nothing is isolated, and nothing is scheduled: pods are made by Kubelet.Run. A pod's processes end with
// the pod, at the latest with Close.
package kubelet
