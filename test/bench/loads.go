package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
)

const (
	configMaps       = "/api/v1/namespaces/" + namespace + "/configmaps"
	listedConfigMaps = "/api/v1/namespaces/" + listedNamespace + "/configmaps"
	// connections is the number of connections that the workers of a user share.
	connections = 4
	// execWorkers is low because each exec starts a process on this machine.
	execWorkers = 4
)

// measurement measures one target for a duration.
type measurement func(ctx context.Context, d time.Duration) (sample, error)

// load is a workload. start prepares it for one target.
type load struct {
	name, about string
	start       func(ctx context.Context, e *environment, t *target) (one measurement, stop func(), err error)
}

func loads() []load {
	return []load{
		{"get", "get one ConfigMap", repeat(0, true, getOne)},
		{"get1", "get one ConfigMap, one worker", repeat(1, true, getOne)},
		{"names", "get many ConfigMaps by name, each for the first time", startNames},
		{"list", "list many ConfigMaps, compressed", repeat(0, true, listAll)},
		{"list1", "list many ConfigMaps, compressed, one worker", repeat(1, true, listAll)},
		{"create", "create a ConfigMap, dry run", repeat(0, true, createOne)},
		{"connect", "get one ConfigMap over a new TLS connection", repeat(0, false, getOne)},
		{"watch", "events of one ConfigMap to many watches", startWatches},
		{"exec", "exec in a pod, over a websocket", startExec},
	}
}

func loadNames() []string {
	var names []string
	for _, l := range loads() {
		names = append(names, l.name)
	}
	return names
}

func getOne() (request, error) { return get(configMaps + "/" + objectName(0)), nil }

func listAll() (request, error) { return get(listedConfigMaps), nil }

func createOne() (request, error) {
	body, err := json.Marshal(configMap(namespace, "another"))
	return request{http.MethodPost, configMaps + "?dryRun=All", body, http.StatusCreated}, err
}

// repeat repeats the same request. With workers 0, the number of workers comes from the options.
func repeat(workers int, keepAlive bool, what func() (request, error)) func(
	context.Context, *environment, *target,
) (measurement, func(), error) {
	return func(_ context.Context, e *environment, t *target) (measurement, func(), error) {
		n := cmp.Or(workers, e.options.workers)
		r, err := what()
		if err != nil {
			return nil, nil, err
		}
		c, err := e.newUserClient(t, min(n, connections), keepAlive)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, d time.Duration) (sample, error) {
			return e.loop(ctx, t, n, 0, d, func(ctx context.Context, worker, _ int) error { return c.do(ctx, worker, r) })
		}, c.close, nil
	}
}

// startNames gets each object once per measurement, as a new user, so nothing is cached.
func startNames(_ context.Context, e *environment, t *target) (measurement, func(), error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		c, err := e.newUserClient(t, connections, true)
		if err != nil {
			return sample{}, err
		}
		defer c.close()
		for connection := range c.conns { // before the measurement starts
			if err := c.do(ctx, connection, get("/api/v1/namespaces/"+namespace)); err != nil {
				return sample{}, err
			}
		}
		return e.loop(ctx, t, e.options.workers, e.options.objects, d, func(ctx context.Context, worker, i int) error {
			return c.do(ctx, worker, get(configMaps+"/"+objectName(i)))
		})
	}, func() {}, nil
}

// loop is a closed loop: each worker waits for its response before the next request. It makes as many requests as fit
// into d, but no more than most unless that is 0, and at least one per worker. It returns at the first error.
func (e *environment) loop(
	ctx context.Context, t *target, workers, most int, d time.Duration,
	call func(ctx context.Context, worker, i int) error,
) (sample, error) {
	return e.account(t, workers, func() ([]time.Duration, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var next atomic.Int64
		latencies := make([][]time.Duration, workers)
		began := time.Now()
		var group sync.WaitGroup
		for worker := range workers {
			group.Go(func() {
				for first := true; ctx.Err() == nil && (first || time.Since(began) < d); first = false {
					i := int(next.Add(1)) - 1
					if most > 0 && i >= most {
						return
					}
					asked := time.Now()
					if err := call(ctx, worker, i); err != nil {
						cancel(err)
						return
					}
					latencies[worker] = append(latencies[worker], time.Since(asked))
				}
			})
		}
		group.Wait()
		return slices.Concat(latencies...), context.Cause(ctx)
	})
}

// account measures the duration of work and the CPU time of the processes. work returns the latency of each operation.
func (e *environment) account(t *target, workers int, work func() ([]time.Duration, error)) (sample, error) {
	s := sample{workers: workers}
	serverBefore, proxyBefore, err := e.cpuTimes(t)
	if err != nil {
		return s, err
	}
	began := time.Now()
	if s.latencies, err = work(); err != nil {
		return s, err
	}
	s.elapsed, s.operations = time.Since(began), len(s.latencies)
	server, proxy, err := e.cpuTimes(t)
	if err != nil || t.process == nil {
		s.serverCPU = server - serverBefore
		return s, err
	}
	s.serverCPU, s.proxyCPU = server-serverBefore, proxy-proxyBefore
	s.memory, _, err = residentMemory(t.process.PID())
	return s, err
}

// cpuTimes returns the CPU time of the API server, and that of the proxy if there is one.
func (e *environment) cpuTimes(t *target) (server, proxy time.Duration, err error) {
	if server, err = cpuTime(e.Cluster.APIServerPID()); err == nil && t.process != nil {
		proxy, err = cpuTime(t.process.PID())
	}
	return server, proxy, err
}

// startExec runs "true" in a pod of a simulated node.
func startExec(ctx context.Context, e *environment, t *target) (measurement, func(), error) {
	if err := e.startNode(ctx); err != nil {
		return nil, nil, err
	}
	config, err := e.newUser(t)
	if err != nil {
		return nil, nil, err
	}
	address := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/exec?%s", config.Host, namespace, podName, url.Values{
		"container": {kubelet.ContainerName}, "command": {"true"}, "stdout": {"true"}, "stderr": {"true"},
	}.Encode())
	return func(ctx context.Context, d time.Duration) (sample, error) {
		return e.loop(ctx, t, execWorkers, 0, d, func(ctx context.Context, _, _ int) error {
			return execOnce(ctx, config, address)
		})
	}, func() {}, nil
}

func execOnce(ctx context.Context, config *rest.Config, address string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, address)
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
}
