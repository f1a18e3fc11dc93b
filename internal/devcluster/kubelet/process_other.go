//go:build !unix

package kubelet

import "os/exec"

// asGroup leaves a process as it is: only itself is killed.
func asGroup(*exec.Cmd) {}

// asSession does nothing, as there are no terminals to open.
func asSession(*exec.Cmd) {}
