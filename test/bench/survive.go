package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// As in the shipped manifests.
const (
	shippedReplicas      = 2
	shippedShutdownDelay = 10 * time.Second
	shippedGrace         = 90 * time.Second // terminationGracePeriodSeconds
	shippedMinReady      = 5 * time.Second  // minReadySeconds
	unreadyAfter         = 3                // failureThreshold of the readiness probe
	// propagation is how long nodes and load balancers still lead connections to a replica that was told to stop.
	propagation = 2 * time.Second
)

const (
	renewedSecret = "renewed"
	// renewedWithin is how soon every replica is to serve a certificate that was renewed.
	renewedWithin = 5 * time.Second
	readyWithin   = time.Minute
)

// Figures of the load survive.
const (
	figureEnded       = "of 100 watches and 100 sessions, ended beside the attack"
	figureSilent      = "of them, without data after it"
	figureProbes      = "probes of the kubelet"
	figureUnavailable = "looks at the aggregated APIs that found them unavailable"
	figureInError     = "looks at the CredentialIssuer that found it in error"
)

// survival is two replicas at the shipped limits, behind a load balancer. Two more take their place in a rollout.
type survival struct {
	*world
	pki      *certs.CA
	replicas [2 * shippedReplicas]*devinstall.Agent
	groups   [2 * shippedReplicas]*memoryGroup
	first    int // of the replicas that run: this one and the next
	balancer *balancer
	node     *kubelet.Kubelet
	// what the other loads use
	usual *devinstall.Agent
	back  func()
}

// measureSurvive attacks all replicas. Meanwhile honest users go on, hold watches and sessions, the certificate is
// renewed, and at last all replicas are replaced by new ones, which are attacked from their first moment.
func measureSurvive(ctx context.Context, w *world, r *report) (err error) {
	s := &survival{world: w, usual: w.agent, back: w.onLoopback()} // attackers call no other address
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.start(ctx); err != nil {
		return err
	}
	for _, one := range attacks() {
		if !w.options.wantsAttack(one.name) {
			continue
		}
		if err := s.under(ctx, r, one); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return nil
}

func (s *survival) start(ctx context.Context) error {
	if err := s.agent.Stop(); err != nil { // it would take part in the election of the leader
		return err
	}
	var err error
	if s.node, err = kubelet.Start(ctx, s.Cluster, "survive"); err != nil {
		return err
	}
	if err := s.node.Run(
		ctx,
		kubelet.Pod{Namespace: namespace, Name: sessionPod, Command: []string{"sleep", "36000"}, Dir: s.dir},
	); err != nil {
		return err
	}
	if s.pki, err = certs.NewCA("bench", time.Now(), 24*time.Hour); err != nil {
		return err
	}
	s.proxyCA = s.pki.CertPEM()
	if s.balancer, err = startBalancer(ctx); err != nil {
		return err
	}
	s.front = s.balancer.address()
	if err := s.renew(ctx, s.issue); err != nil {
		return err
	}
	if err := s.configure(ctx, s.front, map[string]any{
		"secretName": renewedSecret, "certificateAuthorityData": base64.StdEncoding.EncodeToString(s.proxyCA),
	}); err != nil {
		return err
	}
	s.AgentEnv = []string{"GOMEMLIMIT=" + shippedSoftLimit}
	for i := range s.replicas {
		if s.groups[i], err = newMemoryGroup(shippedLimit); err != nil && i == 0 {
			s.say("The agents' memory is not bounded, only its peak is measured: %v", err)
		}
		args := append([]string{"--shutdown-delay=" + s.patiently(shippedShutdownDelay).String()}, s.options.Args...)
		s.Apart = i > 0
		if s.replicas[i], err = s.StartAgent(ctx, fmt.Sprintf("replica-%d", i), args...); err != nil {
			return err
		}
		if i >= shippedReplicas {
			err = s.replicas[i].Stop()
		} else {
			err = s.takesPart(ctx, i)
		}
		if err != nil {
			return err
		}
	}
	if err := s.WaitAvailable(ctx); err != nil {
		return err
	}
	s.agent = s.replicas[0]
	return s.openPasswordLogin(ctx)
}

// patiently is how long to wait instead of what is shipped.
func (s *survival) patiently(d time.Duration) time.Duration {
	return time.Duration(float64(d) * s.options.Patience)
}

// takesPart waits until a replica that was started is ready, and leads clients to it.
func (s *survival) takesPart(ctx context.Context, i int) error {
	if err := s.groups[i].add(s.replicas[i].PID()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := s.replicas[i].WaitReady(ctx); err != nil {
		return err
	}
	s.balancer.lead(s.replicas[i].ProxyAddress(), true)
	return nil
}

// close puts the world back as the other loads expect it.
func (s *survival) close(ctx context.Context) error {
	var err error
	for i, replica := range s.replicas {
		if replica != nil {
			err = errors.Join(err, replica.Stop(), s.groups[i].close())
		}
	}
	if s.balancer != nil {
		s.balancer.close()
	}
	if s.node != nil {
		err = errors.Join(err, s.node.Close())
	}
	return errors.Join(err, s.backToUsual(ctx))
}

// issue makes a serving certificate.
func (s *survival) issue() (*certs.KeyPair, error) {
	return s.pki.IssueServing(certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Now(), time.Hour)
}

// renew puts a certificate into the Secret, as cert-manager would.
func (s *survival) renew(ctx context.Context, issue func() (*certs.KeyPair, error)) error {
	pair, err := issue()
	if err != nil {
		return err
	}
	secrets := s.admin.CoreV1().Secrets(devinstall.Namespace)
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM}})
	if err != nil {
		return err
	}
	_, err = secrets.Patch(ctx, renewedSecret, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		return nil
	}
	_, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: renewedSecret}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making the serving certificate's Secret: %w", err)
	}
	return nil
}

// configure tells the agents at which endpoint clients find the proxy, and which certificate it serves: nil for one
// of its own.
func (s *survival) configure(ctx context.Context, endpoint string, tls map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"impersonationProxy": map[string]any{
		"mode": "enabled", "service": map[string]any{"type": "None"}, "externalEndpoint": endpoint, "tls": tls,
	}}})
	if err != nil {
		return err
	}
	_, err = s.dynamic.Resource(credentialIssuers()).
		Patch(ctx, devinstall.CredentialIssuer, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("configuring the proxy: %w", err)
	}
	return nil
}

func credentialIssuers() schema.GroupVersionResource {
	return schema.GroupVersionResource{
		Group: "config.concierge.pinniped.dev", Version: "v1alpha1", Resource: "credentialissuers",
	}
}

// under measures what one attack does.
func (s *survival) under(ctx context.Context, r *report, one attack) error {
	honest, err := s.newHonest()
	if err != nil {
		return err
	}
	defer honest.close()
	if err := honest.warmUp(ctx); err != nil {
		return fmt.Errorf("before the attack: %w", err)
	}
	held, err := s.hold(ctx)
	if err != nil {
		return fmt.Errorf("before the attack: %w", err)
	}
	defer held.close()
	seen := s.look(ctx)
	defer seen.stop()
	running, next := s.first, (s.first+shippedReplicas)%len(s.replicas)
	attacking := &attackers{survival: s, what: one}
	defer attacking.stop() //nolint:errcheck // stopped below unless something else failed
	for i := range shippedReplicas {
		seen.probe(ctx, s.replicas[running+i])
		if err := attacking.start(ctx, running+i); err != nil {
			return err
		}
	}
	paced, rest := context.WithCancel(ctx)
	defer rest()
	users := honest.goOn(ctx, paced)
	if err := pause(ctx, time.Duration(s.options.Hostile*float64(time.Second))); err != nil {
		return err
	}
	renewed, renewErr := s.renewed(ctx, running)
	ended, silent, first := held.check(ctx, s)
	leaders := seen.leaders()
	rolled, err := s.roll(ctx, attacking, seen, running, next)
	if err != nil {
		return fmt.Errorf("replacing the replicas: %w", err)
	}
	s.first = next
	s.agent = s.replicas[next]
	rest()
	sample := users.wait()
	if err := attacking.stop(); err != nil {
		return err
	}
	seen.stop()
	for _, problem := range []error{sample.first, renewErr, first, seen.problem()} {
		if problem != nil {
			s.say("%s: %v", one.name, problem)
		}
	}
	s.say("%s: %+v", one.name, attacking.did)
	add := func(name, unit string, value, atMost float64) {
		r.addFigure("survive", proxied, figure{
			name: one.name + ": " + name, unit: unit, value: value, atMost: atMost, goal: atMost >= 0,
		})
	}
	const noGoal = -1
	add(figureRequests, "requests", float64(sample.requests), noGoal)
	add(figureFailed, "requests", float64(sample.failed), 0)
	add("honest p99", "ms", milliseconds([]time.Duration{quantile(sample.latencies, 0.99)})[0], noGoal)
	add(
		figureEnded,
		"",
		float64(ended),
		0,
	)
	add(figureSilent, "", float64(silent), 0)
	add("the renewed certificate is served after", "s", renewed.Seconds(), renewedWithin.Seconds())
	add("a new replica is ready after", "s", rolled.ready.Seconds(), readyWithin.Seconds())
	add("a replica has drained after", "s", rolled.drained.Seconds(), shippedGrace.Seconds())
	add(figureProbes, "", float64(seen.probes.asked.Load()), noGoal)
	add("probes that failed or came too late", "", float64(seen.probes.failed.Load()), 0)
	// The kubelet acts on three in a row.
	add("of them, in a row", "", float64(seen.probes.inARow.Load()), unreadyAfter-1)
	add("slowest probe", "ms", float64(seen.probes.slowest.Load())/float64(time.Millisecond), noGoal)
	add("scrapes of metrics that failed", "", float64(seen.scrapes.failed.Load()), 0)
	add(figureUnavailable, "", float64(seen.services.failed.Load()), 0)
	add(figureInError, "", float64(seen.status.failed.Load()), 0)
	add("changes of the leader before any replica was replaced", "", float64(leaders), 0)
	add(figureMemory, "MiB", float64(seen.peak())/(1<<20), shippedLimit>>20)
	return nil
}

// renewed renews the certificate and returns how long it took until the replicas that run served it.
func (s *survival) renewed(ctx context.Context, running int) (time.Duration, error) {
	var pair *certs.KeyPair
	began := time.Now()
	if err := s.renew(ctx, func() (_ *certs.KeyPair, err error) {
		pair, err = s.issue()
		return pair, err
	}); err != nil {
		return time.Since(began), err
	}
	ctx, cancel := context.WithTimeout(ctx, 6*renewedWithin)
	defer cancel()
	for i := range shippedReplicas {
		err := poll(ctx, "the renewed certificate", func() error {
			return presents(ctx, s.replicas[running+i].ProxyAddress(), pair)
		})
		if err != nil {
			return time.Since(began), err
		}
	}
	return time.Since(began), nil
}

// rollout is how long the slowest replica took.
type rollout struct{ ready, drained time.Duration }

// roll replaces the replicas as a Deployment with maxSurge 1 and maxUnavailable 0 does: an old one is told to stop when
// a new one has been ready for minReadySeconds.
func (s *survival) roll(ctx context.Context, attacking *attackers, seen *looks, running, next int) (rollout, error) {
	var worst rollout
	var stopping sync.WaitGroup
	var mu sync.Mutex
	var problem error
	defer stopping.Wait()
	for i := range shippedReplicas {
		old, fresh := s.replicas[running+i], s.replicas[next+i]
		if err := attacking.start(ctx, next+i); err != nil { // it waits at the port
			return worst, err
		}
		began := time.Now()
		if err := fresh.Restart(ctx); err != nil {
			return worst, err
		}
		if err := s.takesPart(ctx, next+i); err != nil {
			return worst, err
		}
		worst.ready = max(worst.ready, time.Since(began))
		seen.probe(ctx, fresh)
		if err := pause(ctx, s.patiently(shippedMinReady)); err != nil {
			return worst, err
		}
		if i == 0 {
			if err := s.PointAt(ctx, fresh); err != nil {
				return worst, err
			}
		}
		seen.leave(old) // a replica that stops is not ready
		stopping.Go(func() {
			told := time.Now()
			err := old.StopWithin(shippedGrace)
			attackErr := attacking.end(running + i)
			mu.Lock()
			defer mu.Unlock()
			worst.drained = max(worst.drained, time.Since(told))
			problem = errors.Join(problem, err, attackErr)
		})
		if err := pause(ctx, s.patiently(propagation)); err != nil {
			return worst, err
		}
		s.balancer.lead(old.ProxyAddress(), false)
	}
	stopping.Wait()
	return worst, problem
}

// backToUsual starts the agent again that the other loads use.
func (s *survival) backToUsual(ctx context.Context) error {
	s.back()
	s.agent, s.front, s.AgentEnv, s.Apart = s.usual, "", nil, false
	if err := s.usual.Restart(ctx); err != nil {
		return err
	}
	if err := s.PointAt(ctx, s.usual); err != nil {
		return err
	}
	if err := s.configure(ctx, s.usual.ProxyAddress(), nil); err != nil {
		return err
	}
	return s.startProxy(ctx)
}
