package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

const (
	honestUsers           = 20
	passwordAuthenticator = "passwords"
	password              = "correct horse battery staple"
	// The limits of the shipped Deployment.
	shippedSoftLimit = "450MiB"
	shippedLimit     = 512 << 20
	// tooMuch ends an attack early: other programs on the machine need memory too.
	tooMuch = 1 << 30
	// watchEvery is the time between two looks at the agent beside an attack. One costs 5 ms of a processor, as the kernel
	// goes through its table of all sockets, and the quiet before has none.
	watchEvery = 500 * time.Millisecond
	// chainLength is as many certificates as a client may present with its own.
	chainLength = 100
)

// atShippedLimits gives the world an agent that has the shipped limits, as long as do runs. It is on loopback: attackers
// call no other address, and all clients come from one, as behind a load balancer that hides them.
func (w *world) atShippedLimits(ctx context.Context, do func(bounded *memoryGroup) error) (err error) {
	elsewhere := w.network != nil
	back := w.onLoopback()
	defer back()
	usual := w.agent
	bounded, noGroup := newMemoryGroup(shippedLimit)
	if noGroup != nil {
		w.say("The agent's memory is not bounded, only its peak is measured: %v", noGroup)
	}
	defer func() {
		hostile := w.agent
		w.agent, w.AgentEnv = usual, nil
		if hostile != usual {
			err = errors.Join(err, hostile.Stop())
		}
		err = errors.Join(err, bounded.close(), w.PointAt(ctx, usual))
		if elsewhere {
			err = errors.Join(err, w.startProxy(ctx)) // with a certificate for its address again
		}
	}()
	w.AgentEnv = []string{"GOMEMLIMIT=" + shippedSoftLimit}
	if w.agent, err = w.StartAgent(ctx, "attacked", w.options.Args...); err != nil {
		w.agent = usual
		return err
	}
	if elsewhere { // the certificate is for an address in the network
		if err := w.startProxy(ctx); err != nil {
			return err
		}
	}
	return do(bounded)
}

// startAfresh starts the agent at the shipped limits anew, also after it has ended, and returns when it is ready.
func (w *world) startAfresh(ctx context.Context, bounded *memoryGroup) error {
	if err := w.agent.Restart(ctx); err != nil {
		return err
	}
	if err := bounded.add(w.agent.PID()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return w.agent.WaitReady(ctx)
}

// measureHostile attacks an agent while honest users go on. Each attack meets a fresh agent.
func measureHostile(ctx context.Context, w *world, r *report) error {
	return w.atShippedLimits(ctx, func(bounded *memoryGroup) error { return attackInTurn(ctx, w, r, bounded) })
}

func attackInTurn(ctx context.Context, w *world, r *report, bounded *memoryGroup) error {
	if err := w.openPasswordLogin(ctx); err != nil {
		return err
	}
	targets, err := w.otherTargets(ctx)
	if err != nil {
		return err
	}
	for _, one := range attacks() {
		if !w.options.wantsAttack(one.name) {
			continue
		}
		what, err := w.orderFor(ctx, one, w.agent)
		if err != nil {
			return err
		}
		if err := underAttack(ctx, w, r, one, what, bounded); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		for _, to := range targets {
			if err := attackAlone(ctx, w, r, one, what, to); err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
		}
	}
	return nil
}

// underAttack measures the honest users quiet, and then beside the attack.
func underAttack(
	ctx context.Context, w *world, r *report, one attack, what order, bounded *memoryGroup,
) error {
	if err := w.startAfresh(ctx, bounded); err != nil {
		return err
	}
	honest, err := w.newHonest()
	if err != nil {
		return err
	}
	defer honest.close()
	d := time.Duration(w.options.Hostile * float64(time.Second))
	if err := honest.warmUp(ctx); err != nil {
		return fmt.Errorf("before the attack: %w", err)
	}
	quiet, err := honest.measure(ctx, w, d, nil)
	if err != nil {
		return err
	}
	if err := forgetPeak(w.agent.PID()); err != nil {
		return err
	}
	goroutines, err := w.goroutines(ctx)
	if err != nil {
		return err
	}
	attacking, err := startAttack(ctx, what)
	if err != nil {
		return err
	}
	var inKernel, peak int64
	beside, err := honest.measure(ctx, w, d, func() bool {
		if n, err := queued(w.agent.ProxyAddress()); err == nil {
			inKernel = max(inKernel, n)
		}
		peak = max(peak, peakOf(w.agent))
		return w.agent.Running() && peak < tooMuch
	})
	did, cost, stopErr := attacking.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return err
	}
	if beside.first != nil {
		w.say("%s: the first of %d failures: %v", one.name, beside.failed, beside.first)
	}
	w.say("%s: %+v", one.name, did)
	left, err := w.recover(ctx, goroutines)
	after, afterErr := honest.measure(ctx, w, min(d, afterwards), nil)
	killed := 0.
	if !w.agent.Running() {
		killed = 1
		w.say("%s: the agent has ended; its log says:\n%s", one.name, tail(w.agent.Log()))
	} else if err := errors.Join(err, afterErr); err != nil {
		return err
	}
	add := func(name, unit string, value, atMost float64) {
		r.addFigure(
			"hostile",
			proxied,
			figure{name: one.name + ": " + name, unit: unit, value: value, atMost: atMost, goal: atMost >= 0},
		)
	}
	const noGoal = -1
	ours := (beside.cpu.proxy - quiet.cpu.proxy).Seconds()
	p99 := func(all []time.Duration) float64 { return milliseconds([]time.Duration{quantile(all, 0.99)})[0] }
	quietP99, besideP99, laterP99 := p99(quiet.latencies), p99(beside.latencies), p99(beside.later)
	add(figureRequests, "requests", float64(beside.requests), noGoal)
	add(figureFailed, "requests", float64(beside.failed), 0)
	add(figureQuiet, "ms", quietP99, noGoal)
	add(figureBeside, "ms", besideP99, 3*quietP99)
	add(figureLater, "ms", laterP99, noGoal)
	// Who waits asks less, so a few that wait for long do not show in the p99.
	add(figureLongest, "ms", milliseconds([]time.Duration{quantile(beside.latencies, 1)})[0], noGoal)
	add(figureMemory, "MiB", float64(max(peak, peakOf(w.agent)))/(1<<20), shippedLimit>>20)
	add(figureKilled, "", killed, 0)
	wait := func(q runQueue) float64 { return milliseconds([]time.Duration{q.perTurn()})[0] }
	add("mean wait of the agent's threads for a processor when it is quiet", "ms", wait(quiet.queued), noGoal)
	add("mean wait of the agent's threads for a processor beside the attack", "ms", wait(beside.queued), noGoal)
	add(figureAsked, "requests", float64(did.Requests), noGoal)
	add("bytes of clients in the kernel at most", "MiB", float64(inKernel)/(1<<20), noGoal)
	add("goroutines of the agent that are left afterwards", "", float64(left), restless)
	add("honest requests that failed afterwards", "requests", float64(after.failed), 0)
	add(figureTheirs, "s", cost.Seconds(), noGoal)
	add("CPU of the API server beside the attack", "s", beside.cpu.apiServer.Seconds(), noGoal)
	add("CPU of the API server when it is quiet", "s", quiet.cpu.apiServer.Seconds(), noGoal)
	add(figureOurs, "s", max(0, ours), cost.Seconds())
	return nil
}

// The figures of an attack that are in its row of the table.
const (
	figureRequests = "honest requests"
	figureFailed   = "honest requests that failed"
	figureQuiet    = "honest p99 when it is quiet"
	figureBeside   = "honest p99 beside the attack"
	figureLater    = "honest p99 beside the attack after its first second"
	figureLongest  = "honest wait beside the attack at most"
	figureKilled   = "ends of the agent"
	figureMemory   = "memory of the agent at most"
	figureTheirs   = "CPU of the attacker"
	figureOurs     = "CPU of the agent for the attack"
)

// hostileTable returns the table of attacks in docs/performance.md, "" when none was measured.
func (r *report) hostileTable() string {
	found := map[string]figureResult{}
	for _, one := range r.Figures {
		if one.Load == "hostile" && one.Way == proxied {
			found[one.Name] = one
		}
	}
	if len(found) == 0 {
		return ""
	}
	var table strings.Builder
	table.WriteString("| attack | honest requests that failed (goal 0) " +
		"| honest p99, quiet → beside it (goal ≤ 3 ×), after its first second, and the longest wait " +
		"| peak memory (goal < 512 MiB) | CPU of attacker : ours (goal: ours less) |\n|---|---|---|---|---|\n")
	for _, one := range attacks() {
		get := func(name string) (float64, string) {
			f := found[one.name+": "+name]
			switch {
			case f.Goal == nil:
				return f.Value, ""
			case f.Goal.Met:
				return f.Value, ": met"
			}
			return f.Value, ": missed"
		}
		requests, _ := get(figureRequests)
		if requests == 0 {
			continue
		}
		failed, noneFailed := get(figureFailed)
		quiet, _ := get(figureQuiet)
		beside, inTime := get(figureBeside)
		later, _ := get(figureLater)
		longest, _ := get(figureLongest)
		peak, fits := get(figureMemory)
		if killed, _ := get(figureKilled); killed > 0 {
			fits = ", then **killed**: missed"
		}
		theirs, _ := get(figureTheirs)
		ours, cheaper := get(figureOurs)
		const row = "| %s | %.0f of %.0f%s | %.0f → %.0f ms%s, %.0f, %.0f ms | %.0f MiB%s | %.2f : %.2f s%s |\n"
		fmt.Fprintf(&table, row, one.about,
			failed, requests, noneFailed, quiet, beside, inTime, later, longest, peak, fits, theirs, ours, cheaper)
	}
	return table.String()
}

func peakOf(agent *devinstall.Agent) int64 {
	m, err := readMemory(agent.PID())
	if err != nil {
		return 0 // it has ended, which is seen elsewhere
	}
	return m.peak
}

// openPasswordLogin starts the local-user-authenticator with one user, whose password costs as much to compare as it
// does by default.
func (w *world) openPasswordLogin(ctx context.Context) error {
	if w.passwords {
		return nil
	}
	w.passwords = true
	users, err := w.StartLocalUsers(ctx)
	if err != nil {
		return err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	if err != nil {
		return err
	}
	secrets := w.admin.CoreV1().Secrets(devinstall.LocalUserNamespace)
	_, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pinny",
		},
		StringData: map[string]string{"passwordHash": string(hash), "groups": group},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making a user with a password: %w", err)
	}
	serving, err := secrets.Get(ctx, "local-user-authenticator-tls-serving-certificate", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the CA of the local-user-authenticator: %w", err)
	}
	resource := schema.GroupVersionResource{
		Group:    "authentication.concierge.pinniped.dev",
		Version:  "v1alpha1",
		Resource: "webhookauthenticators",
	}
	err = w.create(ctx, resource, map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": "WebhookAuthenticator",
		"metadata": map[string]any{"name": passwordAuthenticator},
		"spec": map[string]any{
			"endpoint": users.Endpoint(),
			"tls": map[string]any{
				"certificateAuthorityData": base64.StdEncoding.EncodeToString(serving.Data["caCertificate"]),
			},
		},
	})
	if err != nil {
		return fmt.Errorf("making the authenticator: %w", err)
	}
	return nil
}

// honest are users who do what users do, at their own pace.
type honest struct {
	users []*honestUser
}

// honestUser does one thing again and again.
type honestUser struct {
	pace time.Duration
	do   func(ctx context.Context, i int) error
	stop func()
}

// pacedSample is a sample in which requests may fail.
type pacedSample struct {
	sample
	failed int
	first  error
	later  []time.Duration // latencies of what was asked after the first second
	queued runQueue        // of the agent
}

// newHonest makes users: most keep a connection and read what they read before, something new and lists, and write;
// some connect for each request, as kubectl does; some log in.
func (w *world) newHonest() (*honest, error) {
	all := &honest{}
	for i := range honestUsers {
		var c *client
		var err error
		one := &honestUser{pace: 200 * time.Millisecond}
		if i%10 == 9 {
			c, err = w.anonymousClient(1)
			one.pace = time.Second
			one.do = func(ctx context.Context, _ int) error {
				defer c.close()
				return logInAs(ctx, c, 0, loginBody(passwordAuthenticator, "pinny:"+password))
			}
		} else {
			var config map[string]*rest.Config
			if config, err = w.newUser(group); err != nil {
				return nil, err
			}
			c, err = newClient(config[proxied], 1)
			one.do = func(ctx context.Context, turn int) error {
				if i%5 == 4 {
					defer c.close()
				}
				_, err := c.do(ctx, 0, honestRequest(w, turn))
				return err
			}
		}
		if err != nil {
			return nil, err
		}
		one.stop = c.close
		all.users = append(all.users, one)
	}
	return all, nil
}

func honestRequest(w *world, turn int) request {
	switch turn % 10 {
	case 3, 8: // a question that was not asked before
		return get(configMaps + "/" + objectName((1+turn)%w.options.Objects))
	case 5:
		return get(configMaps + "?limit=20")
	case 7:
		body := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"honest-"}}`)
		return request{method: http.MethodPost, path: configMaps + "?dryRun=All", body: body, want: http.StatusCreated}
	}
	return get(configMaps + "/" + objectName(0))
}

func (h *honest) close() {
	for _, one := range h.users {
		one.stop()
	}
}

// warmUp returns when every user got an answer.
func (h *honest) warmUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return parallel(ctx, len(h.users), len(h.users), func(i int) error {
		return poll(ctx, "an honest user's answer", func() error { return h.users[i].do(ctx, 0) })
	})
}

// measure has all users go on for d, or until goOn, if there is one, returns false. A request that fails is counted.
func (h *honest) measure(ctx context.Context, w *world, d time.Duration, goOn func() bool) (pacedSample, error) {
	before, err := w.processorTimes()
	if err != nil {
		return pacedSample{}, err
	}
	queued, noQueue := readRunQueue(w.agent.PID()) // which not every kernel tells
	paced, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	began := time.Now()
	users := h.goOn(ctx, paced)
	if goOn != nil {
		for sleep(paced, watchEvery) {
			if !goOn() {
				cancel()
			}
		}
	}
	all := users.wait()
	all.elapsed = time.Since(began)
	after, err := w.processorTimes()
	if err != nil && w.agent.Running() {
		return all, err
	}
	all.cpu = after.minus(before)
	if now, err := readRunQueue(w.agent.PID()); err == nil && noQueue == nil {
		all.queued = now.minus(queued)
	}
	return all, ctx.Err()
}
