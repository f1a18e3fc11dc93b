// Package kubeconfig builds and writes kubeconfigs that log in with the pinniped CLI. It never contacts a cluster.
//
// Select picks the context of an existing kubeconfig that the new one is for; Build makes the new one, with an exec
// credential plugin that runs "pinniped login"; Write and WriteFile put it out. Merge and MergeFile put it into a
// kubeconfig that has other entries as well. Rotate and RotateFile put a new CA
// bundle into kubeconfigs that users have already.
package kubeconfig
