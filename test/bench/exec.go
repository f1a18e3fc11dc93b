package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
)

// execWorkers are few: each exec starts a process on this machine.
const execWorkers = 4

// execLoad runs "true" in a pod of a stand-in node, over a websocket.
func execLoad(ctx context.Context, w *world, r *report) (err error) {
	const pod = "exec"
	node, err := kubelet.Start(ctx, w.Cluster, "node")
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := node.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := node.Run(
		ctx,
		kubelet.Pod{Namespace: namespace, Name: pod, Command: []string{"sleep", "3600"}, Dir: w.dir},
	); err != nil {
		return err
	}
	configs, err := w.newUser(group)
	if err != nil {
		return err
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/exec?%s", namespace, pod, url.Values{
		"container": {kubelet.ContainerName}, "command": {"true"}, "stdout": {"true"}, "stderr": {"true"},
	}.Encode())
	return inTurn(ctx, w, r, "exec", goals{}, func(ctx context.Context, way string, d time.Duration) (sample, error) {
		return loop{workers: execWorkers, call: func(ctx context.Context, _, _ int) (int64, error) {
			return 0, execOnce(ctx, configs[way], configs[way].Host+path)
		}}.run(ctx, w, d)
	})
}

func execOnce(ctx context.Context, config *rest.Config, address string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", address)
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
}
