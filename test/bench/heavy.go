package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// heavyTimeout is when an answer is given up.
	heavyTimeout = 3 * time.Minute
	// unnoticed is how much longer than direct a wait may be in any case.
	unnoticed = 50 * time.Millisecond

	large           = "bench-large" // a namespace
	largeConfigMaps = "/api/v1/namespaces/" + large + "/configmaps"
	largeObjects    = 120
	largeObject     = 100 << 10 // bytes: all together are a list of 12 MB
	slowLabel       = "bench-slow"
)

// heavyUse is something that honest users do, which is more than usual.
type heavyUse struct {
	about string
	// run does it on one way, and says what came of it. Meanwhile is for what the same users do beside it.
	run func(ctx context.Context, w *world, way string, did, meanwhile *outcome) error
	// meanwhile says what that is, "" for nothing.
	meanwhile string
}

func heavyUses() []heavyUse {
	return []heavyUse{
		{"60 creates of one CI account behind a webhook of 5 s", slowCreates, "the gets of that account meanwhile"},
		{"20 users who read 12 MB and pause for 5 s", pausedLists(20, 5*time.Second), ""},
		{"40 users who read 12 MB and pause for 3 s", pausedLists(40, 3*time.Second), ""},
		{"200 older clients, 20 discovery gets in parallel, one connection each", discoveries(style{}), ""},
		{"200 older clients, 20 discovery gets in parallel, over HTTP/1.1", discoveries(style{http1: true}), ""},
		{"2000 WatchLists of one operator at once", watchLists, ""},
	}
}

// measureHonest has all ways carry what honest users do, the proxied ones at the shipped limits. Nobody asks again.
func measureHonest(ctx context.Context, w *world, r *report) error {
	return w.atShippedLimits(ctx, func(bounded *memoryGroup) error {
		objects := w.sized(largeObjects)
		if err := w.fillWith(ctx, large, objects, largeConfigMap); err != nil {
			return err
		}
		for _, one := range heavyUses() {
			var did, meanwhile [2]outcome
			if err := w.startAfresh(ctx, bounded); err != nil {
				return err
			}
			for i, way := range []string{direct, proxied} {
				if err := one.run(ctx, w, way, &did[i], &meanwhile[i]); err != nil {
					return fmt.Errorf("%s, %s: %w", one.about, way, err)
				}
				w.say("%s, %s: %d requests, the first that failed: %v", one.about, way, did[i].requests(), did[i].first)
			}
			if !w.agent.Running() {
				w.say("%s: the agent has ended; its log says:\n%s", one.about, tail(w.agent.Log()))
			}
			r.addHeavy(one.about, &did)
			if one.meanwhile != "" {
				r.addHeavy(one.meanwhile, &meanwhile)
			}
			r.addFigure("honest", proxied, figure{
				name: one.about + ": " + figureMemory, unit: "MiB", value: float64(peakOf(w.agent)) / (1 << 20),
				atMost: shippedLimit >> 20,
			})
		}
		return nil
	})
}

// sized is a number of a heavy use, for as large a run as was asked for.
func (w *world) sized(n int) int { return max(2, int(float64(n)*w.options.Honest)) }

func (w *world) shortened(d time.Duration) time.Duration {
	return time.Duration(float64(d) * w.options.Honest)
}

// outcome is what came of requests.
type outcome struct {
	mu                   sync.Mutex
	refused, cut, failed int
	waits                []time.Duration // of all, without what the client paused
	first                error
	began, ended         time.Time
}

func (o *outcome) requests() int { return len(o.waits) }

// ask makes a request. Its answer is read by read, which returns how long the client itself has paused.
func (o *outcome) ask(
	ctx context.Context, c *client, r request, read func(io.Reader) (time.Duration, error),
) {
	ctx, cancel := context.WithTimeout(ctx, heavyTimeout)
	defer cancel()
	asked := time.Now()
	answer, err := c.open(ctx, 0, r)
	begun := err == nil
	var paused time.Duration
	if begun {
		paused, err = read(answer.Body)
		_ = answer.Body.Close()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() || asked.Before(o.began) {
		o.began = asked
	}
	o.ended = time.Now()
	o.waits = append(o.waits, o.ended.Sub(asked)-paused)
	o.first = cmp.Or(o.first, err)
	var wrong *wrongAnswer
	switch {
	case err == nil:
	case begun:
		o.cut++
	case errors.As(err, &wrong) && (wrong.code == http.StatusTooManyRequests || wrong.code == http.StatusServiceUnavailable):
		o.refused++
	default:
		o.failed++
	}
}

func readAll(body io.Reader) (time.Duration, error) {
	_, err := io.Copy(io.Discard, body)
	return 0, err
}

// together calls do with 0 to n-1, all at once.
func together(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

// clientsOfOne makes clients for one way, all of one user. The API server itself neither refuses that user anything nor
// has it wait, so that the proxy's part is seen.
func (w *world) clientsOfOne(way string, n int) ([]*client, error) {
	configs, err := w.newUser("system:masters")
	if err != nil {
		return nil, err
	}
	var clients []*client
	for range n {
		c, err := newClient(configs[way], 1)
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// clientsOfMany makes clients for one way, each of a user of its own.
func (w *world) clientsOfMany(way string, n int, as style) ([]*client, error) {
	var clients []*client
	for range n {
		configs, err := w.newUser(group)
		if err != nil {
			return nil, err
		}
		c, err := newStyledClient(configs[way], 1, as)
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// largeConfigMap holds what cannot be compressed much.
func largeConfigMap(name string) *corev1.ConfigMap {
	data := make([]byte, largeObject*3/4)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: large, Name: name},
		Data:       map[string]string{"data": base64.StdEncoding.EncodeToString(data)},
	}
}

// pausedLists has users begin to read a long list, do something else, and read the rest. Every other client speaks
// HTTP/1.1, and takes less of the rest meanwhile than Go's does over HTTP/2.
func pausedLists(users int, d time.Duration) func(context.Context, *world, string, *outcome, *outcome) error {
	return func(ctx context.Context, w *world, way string, did, _ *outcome) error {
		var clients []*client
		for _, as := range []style{{plain: true}, {plain: true, http1: true}} {
			some, err := w.clientsOfMany(way, w.sized(users)/2, as)
			if err != nil {
				return err
			}
			clients = append(clients, some...)
		}
		d := w.shortened(d)
		together(len(clients), func(i int) {
			defer clients[i].close()
			did.ask(ctx, clients[i], get(largeConfigMaps), func(body io.Reader) (time.Duration, error) {
				if _, err := io.CopyN(io.Discard, body, largeObject); err != nil {
					return 0, err
				}
				if err := pause(ctx, d); err != nil {
					return d, err
				}
				_, err := readAll(body)
				return d, err
			})
		})
		return ctx.Err()
	}
}

// discoveries has clients without a cache ask what there is.
func discoveries(as style) func(context.Context, *world, string, *outcome, *outcome) error {
	const inParallel = 20
	return func(ctx context.Context, w *world, way string, did, _ *outcome) error {
		groups, err := w.admin.Discovery().ServerGroups()
		if err != nil {
			return err
		}
		paths := []string{"/api/v1"}
		for _, one := range groups.Groups {
			for _, version := range one.Versions {
				if one.Name != "" {
					paths = append(paths, "/apis/"+version.GroupVersion)
				}
			}
		}
		clients, err := w.clientsOfMany(way, w.sized(200), as)
		if err != nil {
			return err
		}
		together(len(clients), func(i int) {
			defer clients[i].close()
			together(inParallel, func(which int) { did.ask(ctx, clients[i], get(paths[which%len(paths)]), readAll) })
		})
		return ctx.Err()
	}
}

// watchLists has an operator start that watches many things: each watch begins with what there is. It keeps them until
// all have begun.
func watchLists(ctx context.Context, w *world, way string, did, _ *outcome) error {
	clients, err := w.clientsOfOne(way, 1)
	if err != nil {
		return err
	}
	operator := clients[0] // as client-go, it opens connections when the others are full of streams
	defer operator.close()
	n := w.sized(2000)
	var left atomic.Int64
	left.Store(int64(n))
	all := make(chan struct{})
	begun := func() {
		if left.Add(-1) == 0 {
			close(all)
		}
	}
	together(n, func(i int) {
		path := fmt.Sprintf("/api/v1/namespaces/watched-%d/configmaps?watch=1&allowWatchBookmarks=true"+
			"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", i)
		once := sync.OnceFunc(begun)
		defer once()
		did.ask(ctx, operator, get(path), func(body io.Reader) (time.Duration, error) {
			if err := readUntil(body, []byte(metav1.InitialEventsAnnotationKey)); err != nil {
				return 0, err
			}
			once()
			kept := time.Now()
			<-all
			return time.Since(kept), nil
		})
	})
	return ctx.Err()
}

// slowCreates has a CI account write, all its jobs at once, what a webhook takes long to admit. Meanwhile it reads, too.
func slowCreates(ctx context.Context, w *world, way string, did, meanwhile *outcome) (err error) {
	const many, between = 60, 100 * time.Millisecond
	called, remove, err := w.openSlowWebhook(ctx, w.shortened(5*time.Second))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	jobs, err := w.clientsOfOne(way, w.sized(many)+1)
	if err != nil {
		return err
	}
	reader := jobs[len(jobs)-1]
	defer reader.close()
	paced, done := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		for more := true; more; more = sleep(paced, between) {
			meanwhile.ask(ctx, reader, getOne(), readAll)
		}
	})
	together(len(jobs)-1, func(i int) {
		defer jobs[i].close()
		did.ask(ctx, jobs[i], slowCreate(), readAll)
	})
	done()
	reading.Wait()
	if n := int(called.Load()); n < did.requests()-did.refused-did.failed {
		return fmt.Errorf("the webhook was asked only %d times", n)
	}
	return ctx.Err()
}

func slowCreate() request {
	body := fmt.Sprintf(
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"slow-","labels":{%q:"yes"}}}`, slowLabel,
	)
	return request{method: http.MethodPost, path: configMaps + "?dryRun=All", body: []byte(body), want: http.StatusCreated}
}

// openSlowWebhook has the API server ask a webhook, which takes so long, for some ConfigMaps. It returns when the API
// server does, with the number of its calls from then on, and what ends it.
func (w *world) openSlowWebhook(ctx context.Context, takes time.Duration) (*atomic.Int64, func() error, error) {
	var called, slow atomic.Int64
	hook, err := startWebhook(ctx, w.network.listenAddress(), func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		called.Add(1)
		sleep(req.Context(), time.Duration(slow.Load()))
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review) // else the API server refuses the request
	})
	if err != nil {
		return nil, nil, err
	}
	none, seconds := admissionregistrationv1.SideEffectClassNone, int32(30)
	configurations := w.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = configurations.Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: slowLabel},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:         "slow.bench.example",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &hook.url, CABundle: hook.ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"},
				},
			}},
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{slowLabel: "yes"}},
			SideEffects:             &none,
			TimeoutSeconds:          &seconds,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("making a webhook configuration: %w", err), hook.server.Close())
	}
	remove := func() error {
		return errors.Join(configurations.Delete(ctx, slowLabel, metav1.DeleteOptions{}), hook.server.Close())
	}
	admins, err := newClient(w.Cluster.AdminConfig(), 1)
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	defer admins.close()
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = poll(waiting, "the API server to ask the webhook", func() error {
		_, err := admins.do(waiting, 0, slowCreate())
		if err == nil && called.Load() == 0 {
			err = errors.New("it was not asked")
		}
		return err
	})
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	called.Store(0)
	slow.Store(int64(takes))
	return &called, remove, nil
}

// The figures of a heavy use that are in its row of the table.
const (
	figureAll      = "requests"
	figureRefused  = "answered with 429 or 503"
	figureCut      = "answers cut in the middle"
	figureErrors   = "other errors"
	figureWait     = "p99 wait"
	figureDone     = "all done after"
	heavyTableHead = "| honest use, proxy / direct | requests | 429 or 503 (goal ≤ direct) | cut (goal 0) " +
		"| other errors (goal ≤ direct) | p99 wait (goal ≤ 2 × direct) | all done after | peak memory |\n" +
		"|---|---|---|---|---|---|---|---|\n"
)

// addHeavy adds the figures of a heavy use, direct and proxied.
func (r *report) addHeavy(about string, did *[2]outcome) {
	wait := func(o *outcome) float64 { return milliseconds([]time.Duration{quantile(o.waits, 0.99)})[0] }
	for i, way := range []string{direct, proxied} {
		one, goal := &did[i], way != direct
		add := func(name, unit string, value, atMost float64) {
			r.addFigure("honest", way, figure{
				name: about + ": " + name, unit: unit, value: value, atMost: atMost, goal: goal && atMost >= 0,
			})
		}
		const noGoal = -1
		add(figureAll, "requests", float64(one.requests()), noGoal)
		add(figureRefused, "requests", float64(one.refused), float64(did[0].refused))
		add(figureCut, "requests", float64(one.cut), 0)
		add(figureErrors, "requests", float64(one.failed), float64(did[0].failed))
		add(figureWait, "ms", wait(one), max(2*wait(&did[0]), wait(&did[0])+milliseconds([]time.Duration{unnoticed})[0]))
		add(figureDone, "s", one.ended.Sub(one.began).Seconds(), noGoal)
	}
}

// heavyTable returns the table of heavy uses in docs/performance.md, "" when none was measured.
func (r *report) heavyTable() string {
	found := map[string]figureResult{}
	for _, one := range r.Figures {
		if one.Load == "honest" {
			found[one.Way+" "+one.Name] = one
		}
	}
	var rows strings.Builder
	for _, one := range heavyUses() {
		for _, about := range []string{one.about, one.meanwhile} {
			cell := func(name string) string {
				ours := found[proxied+" "+about+": "+name]
				verdict := ""
				if g := ours.Goal; g != nil && !g.Met {
					verdict = ": missed"
				}
				return fmt.Sprintf("%s / %s%s", digits(ours.Value), digits(found[direct+" "+about+": "+name].Value), verdict)
			}
			if _, measured := found[proxied+" "+about+": "+figureAll]; !measured {
				continue
			}
			peak := ""
			if m, measured := found[proxied+" "+about+": "+figureMemory]; measured {
				peak = digits(m.Value) + " MiB"
			}
			fmt.Fprintf(&rows, "| %s | %s | %s | %s | %s | %s ms | %s s | %s |\n", about, cell(figureAll),
				cell(figureRefused), cell(figureCut), cell(figureErrors), cell(figureWait), cell(figureDone), peak)
		}
	}
	if rows.Len() == 0 {
		return ""
	}
	return heavyTableHead + rows.String()
}
