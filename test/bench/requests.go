package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/client-go/rest"
)

const (
	configMaps       = "/api/v1/namespaces/" + namespace + "/configmaps"
	listed           = "bench-list" // a namespace
	listedConfigMaps = "/api/v1/namespaces/" + listed + "/configmaps"
)

// goals are what we aim at. Zero is no goal.
type goals struct {
	ratio        float64 // proxied requests per second, of direct ones
	addedLatency float64 // of a direct request's latency
	cpu          float64 // the proxy's processor time for a request, of that of the API server for a direct get
}

// pinnipedsGet is what a direct get cost the API server in microseconds where Pinniped's processor time was measured.
// The goals are shares of the latter, and have to hold on other machines, too.
const pinnipedsGet = 743.

// inTurn measures both ways in turn, after a turn of each that does not count.
func inTurn(
	ctx context.Context,
	w *world,
	r *report,
	name string,
	goal goals,
	turn func(ctx context.Context, way string, d time.Duration) (sample, error),
) error {
	samples := map[string][]sample{}
	for round := range w.options.Rounds + 1 {
		for _, way := range w.ways() {
			d := w.options.turn()
			if round == 0 {
				d = min(d, time.Second) // connections are made, caches filled
			}
			one, err := turn(ctx, way, d)
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			if one.requests == 0 {
				return fmt.Errorf("%s: no request was finished in %s", way, d)
			}
			if round > 0 {
				samples[way] = append(samples[way], one)
			}
		}
	}
	r.addRequests(name, goal, samples)
	return nil
}

// bothClients returns a user's clients, by way.
func (w *world) bothClients(connections int) (map[string]*client, error) {
	configs, err := w.newUser(group)
	if err != nil {
		return nil, err
	}
	return clientsOf(configs, connections, style{})
}

func clientsOf(configs map[string]*rest.Config, connections int, as style) (map[string]*client, error) {
	clients := map[string]*client{}
	for way, config := range configs {
		var err error
		if clients[way], err = newStyledClient(config, connections, as); err != nil {
			return nil, err
		}
	}
	return clients, nil
}

// repeated measures one request again and again.
type repeated struct {
	name   string
	single bool // one worker
	token  bool // the user has a bearer token instead of a client certificate
	style  style
	goal   goals
	what   request
}

func (l repeated) run(ctx context.Context, w *world, r *report) error {
	workers := w.options.Workers
	if l.single {
		workers = 1
	}
	connections := min(workers, w.options.Clients)
	if l.style.http1 {
		connections = workers // each has one request at a time
	}
	configs, err := w.newUser(group)
	if l.token {
		configs, err = w.accountConfigs(ctx)
	}
	if err != nil {
		return err
	}
	clients, err := clientsOf(configs, connections, l.style)
	if err != nil {
		return err
	}
	return inTurn(ctx, w, r, l.name, l.goal, func(ctx context.Context, way string, d time.Duration) (sample, error) {
		return loop{workers: workers, call: func(ctx context.Context, worker, _ int) (int64, error) {
			return clients[way].do(ctx, worker, l.what)
		}}.run(ctx, w, d)
	})
}

// accountConfigs are those of a service account, which has a bearer token.
func (w *world) accountConfigs(ctx context.Context) (map[string]*rest.Config, error) {
	config, err := w.Cluster.ServiceAccountConfig(ctx, namespace, account)
	if err != nil {
		return nil, err
	}
	return w.byWay(config)
}

func getOne() request { return get(configMaps + "/" + objectName(0)) }

// listAll is answered with 1.36 MB, or 0.83 MB compressed.
func listAll() request {
	r := get(listedConfigMaps)
	r.large = true
	return r
}

// namesLoad gets every ConfigMap once for each user.
type namesLoad struct {
	name   string
	single bool // one worker
	goal   goals
}

func (l namesLoad) run(ctx context.Context, w *world, r *report) error {
	workers := w.options.Workers
	if l.single {
		workers = 1
	}
	return inTurn(ctx, w, r, l.name, l.goal, func(ctx context.Context, way string, d time.Duration) (sample, error) {
		var all sample
		// A user who was not seen before needs an access review for every name. When the names are used up comes another.
		for all.elapsed < d {
			one, err := oncePerName(ctx, w, way, workers, d-all.elapsed)
			if err != nil {
				return all, err
			}
			all.add(one)
		}
		return all, nil
	})
}

func oncePerName(ctx context.Context, w *world, way string, workers int, d time.Duration) (sample, error) {
	clients, err := w.bothClients(min(workers, w.options.Clients))
	if err != nil {
		return sample{}, err
	}
	c := clients[way]
	defer c.close()
	for connection := range c.conns { // opened before the time counts
		if _, err := c.do(ctx, connection, get("/api/v1/namespaces/"+namespace)); err != nil {
			return sample{}, err
		}
	}
	return loop{workers: workers, most: w.options.Objects, call: func(ctx context.Context, worker, i int) (int64, error) {
		return c.do(ctx, worker, get(configMaps+"/"+objectName(i)))
	}}.run(ctx, w, d)
}

func createLoad(ctx context.Context, w *world, r *report) error {
	body, err := json.Marshal(configMap("another"))
	if err != nil {
		return fmt.Errorf("encoding a ConfigMap: %w", err)
	}
	what := request{method: http.MethodPost, path: configMaps + "?dryRun=All", body: body, want: http.StatusCreated}
	return repeated{name: "create", goal: goals{ratio: 0.80, cpu: 1132. / 3 / pinnipedsGet}, what: what}.run(ctx, w, r)
}

// connectLoad makes a TLS connection for each request, without resuming an earlier session.
func connectLoad(ctx context.Context, w *world, r *report) error {
	clients, err := w.bothClients(w.options.Workers)
	if err != nil {
		return err
	}
	for _, c := range clients {
		for _, conn := range c.conns {
			conn.Transport.(*http.Transport).DisableKeepAlives = true
		}
	}
	what := get(configMaps + "/" + objectName(0))
	return inTurn(
		ctx,
		w,
		r,
		"connect",
		goals{ratio: 0.85},
		func(ctx context.Context, way string, d time.Duration) (sample, error) {
			return loop{workers: w.options.Workers, call: func(ctx context.Context, worker, _ int) (int64, error) {
				return clients[way].do(ctx, worker, what)
			}}.run(ctx, w, d)
		},
	)
}

// durations of one kind, in milliseconds.
func milliseconds(durations []time.Duration) []float64 {
	values := make([]float64, 0, len(durations))
	for d := range slices.Values(durations) {
		values = append(values, float64(d)/float64(time.Millisecond))
	}
	return values
}
