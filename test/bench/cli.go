package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

func measureSizes(_ context.Context, w *world, r *report) error {
	for _, program := range []struct {
		name, path string
		atMost     float64
	}{{"agent", w.options.Agent, 50}, {"CLI", w.options.CLI, 25}} {
		info, err := os.Stat(program.path)
		if err != nil {
			return err
		}
		r.addFigure(
			"size",
			proxied,
			figure{
				name:   "size of the " + program.name + "'s program",
				unit:   "MB",
				value:  float64(info.Size()) / 1e6,
				atMost: program.atMost,
			},
		)
	}
	return nil
}

// command is a program as a user starts it.
type command struct {
	name   string
	args   []string
	before func() error // each start; may be nil
	atMost float64      // milliseconds
}

// measureCLI starts programs again and again, in turn, and takes the time until each has ended.
func measureCLI(ctx context.Context, w *world, r *report) error {
	if err := w.openLogin(ctx); err != nil {
		return err
	}
	kubectl, err := w.Cluster.Kubectl()
	if err != nil {
		return err
	}
	configs, err := w.newUser(group)
	if err != nil {
		return err
	}
	kubeconfigs := map[string]string{}
	for way, config := range configs {
		kubeconfigs[way] = w.file(way + ".kubeconfig")
		if err := w.Cluster.WriteKubeconfig(kubeconfigs[way], config); err != nil {
			return err
		}
	}
	cache := w.file("credentials.yaml")
	login := []string{
		w.options.CLI,
		"login",
		"static",
		"--enable-concierge",
		"--concierge-endpoint=https://" + w.agent.ProxyAddress(),
		"--concierge-ca-bundle-data=" + base64.StdEncoding.EncodeToString(
			w.proxyCA,
		),
		"--concierge-authenticator-type=webhook",
		"--concierge-authenticator-name=" + authenticatorName,
		"--token=" + staticToken,
		"--credential-cache=" + cache,
	}
	commands := []command{
		{name: "true (what any program costs)", args: []string{"true"}},
		{name: "pinniped version", args: []string{w.options.CLI, "version"}, atMost: 10},
		{name: "pinniped login static, cold", args: login, atMost: 30, before: func() error {
			if err := os.Remove(cache); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		}},
		{name: "pinniped login static, warm", args: login, atMost: 10},
		{name: "kubectl get ns, direct", args: []string{kubectl, "--kubeconfig=" + kubeconfigs[direct], "get", "ns"}},
		{name: "kubectl get ns, proxied", args: []string{kubectl, "--kubeconfig=" + kubeconfigs[proxied], "get", "ns"}},
	}
	times := make([][]time.Duration, len(commands))
	for round := range 3*w.options.Rounds + 1 {
		for i, c := range commands {
			took, err := w.start(ctx, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if round > 0 { // the first fills the page cache, and kubectl's
				times[i] = append(times[i], took)
			}
		}
	}
	var before float64
	for i, c := range commands {
		value := median(milliseconds(times[i]))
		if c.name == "kubectl get ns, proxied" {
			c.atMost = 1.15 * before
		}
		before = value
		r.addFigure("cli", proxied, figure{name: c.name, unit: "ms", value: value, atMost: c.atMost})
	}
	return nil
}

// start runs a program in an environment of its own.
func (w *world) start(ctx context.Context, c command) (time.Duration, error) {
	if c.before != nil {
		if err := c.before(); err != nil {
			return 0, err
		}
	}
	args := c.args
	if w.network != nil {
		enter, err := w.network.enter(w.network.client)
		if err != nil {
			return 0, err
		}
		args = append(enter, args...)
	}
	process := exec.CommandContext(ctx, args[0], args[1:]...)
	process.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}
	var errOut bytes.Buffer
	process.Stderr = &errOut
	began := time.Now()
	if err := process.Run(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, errOut.String())
	}
	return time.Since(began), nil
}
