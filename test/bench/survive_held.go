package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
)

const (
	heldWatches  = 100 // each of another user
	heldSessions = 100
	sessionUsers = 10
	sessionPod   = "survive"
	watchedName  = "survive"
	// dataWithin is how long data may take on what is held, beside everything else that goes on.
	dataWithin = 15 * time.Second
)

// held are watches and sessions in a pod, which live until they are closed.
type held struct {
	watches  []*watching
	sessions []*session
	arrived  atomic.Int64 // watches on which an event came
	ended    atomic.Int64 // watches that ended
	closing  atomic.Bool
}

// session is a program in a pod that sends back each line.
type session struct {
	in      *io.PipeWriter
	answers *bufio.Reader
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has ended
	err     error
}

func (s *survival) hold(ctx context.Context) (*held, error) {
	there, err := s.admin.CoreV1().ConfigMaps(namespace).Get(ctx, watchedName, metav1.GetOptions{})
	if err != nil {
		if there, err = s.admin.CoreV1().
			ConfigMaps(namespace).
			Create(ctx, configMap(watchedName), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	var watchers []*client
	for range heldWatches {
		clients, err := s.bothClients(1)
		if err != nil {
			return nil, err
		}
		watchers = append(watchers, clients[proxied])
	}
	h := &held{}
	var opened bool
	defer func() {
		if !opened {
			h.close()
		}
	}()
	var mu sync.Mutex
	err = parallel(ctx, 8, heldWatches, func(i int) error {
		one := newWatching(ctx, watchers[i], h.watch)
		if err := one.open(0, watchPath(watchedName, there.ResourceVersion)); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		h.watches = append(h.watches, one)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var users []*rest.Config
	for range sessionUsers {
		configs, err := s.newUser(group)
		if err != nil {
			return nil, err
		}
		users = append(users, configs[proxied])
	}
	err = parallel(ctx, 8, heldSessions, func(i int) error {
		one, err := startSession(ctx, users[i%len(users)])
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		h.sessions = append(h.sessions, one)
		return one.say("hello")
	})
	opened = err == nil
	return h, err
}

func (h *held) watch(body io.Reader) {
	if _, err := io.ReadFull(body, make([]byte, 1)); err == nil {
		h.arrived.Add(1)
	}
	_, _ = io.Copy(io.Discard, body)
	if !h.closing.Load() {
		h.ended.Add(1)
	}
}

// check returns how many watches and sessions have ended, and on how many of the others no data comes any more, with the
// first problem.
func (h *held) check(ctx context.Context, s *survival) (ended, silent int, first error) {
	ended = int(h.ended.Load())
	if ended > 0 {
		first = fmt.Errorf("%d watches have ended", ended)
	}
	watches := heldWatches - ended
	for _, one := range h.sessions {
		select {
		case <-one.done:
			ended++
			first = errors.Join(first, one.err)
			continue
		default:
		}
		if err := one.say("still there"); err != nil {
			silent++
			first = errors.Join(first, err)
		}
	}
	if _, err := s.admin.CoreV1().ConfigMaps(namespace).Patch(
		ctx, watchedName, types.MergePatchType, fmt.Appendf(nil, `{"data":{"change":%q}}`, random()), metav1.PatchOptions{},
	); err != nil {
		return ended, silent + watches, errors.Join(first, err)
	}
	for deadline := time.Now().Add(dataWithin); time.Now().Before(deadline) && int(h.arrived.Load()) < watches; {
		time.Sleep(20 * time.Millisecond)
	}
	silent += max(0, watches-int(h.arrived.Load()))
	return ended, silent, first
}

func (h *held) close() {
	h.closing.Store(true)
	var all sync.WaitGroup
	for _, one := range h.watches {
		all.Go(one.close)
	}
	for _, one := range h.sessions {
		all.Go(one.close)
	}
	all.Wait()
}

func startSession(ctx context.Context, config *rest.Config) (*session, error) {
	ctx, cancel := context.WithCancel(ctx)
	executor, err := remotecommand.NewWebSocketExecutor(
		config, "GET", fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/exec?%s", config.Host, namespace, sessionPod, url.Values{
			"container": {kubelet.ContainerName}, "command": {"cat"}, "stdin": {"true"}, "stdout": {"true"},
		}.Encode()),
	)
	if err != nil {
		cancel()
		return nil, err
	}
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	one := &session{in: in, answers: bufio.NewReader(out), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(one.done)
		one.err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		if one.err == nil {
			one.err = errors.New("a session ended")
		}
		_ = stdin.CloseWithError(one.err)
		_ = stdout.CloseWithError(one.err)
	}()
	return one, nil
}

// say sends a line and waits until it has come back.
func (s *session) say(line string) error {
	late := time.AfterFunc(dataWithin, s.cancel)
	defer late.Stop()
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		return fmt.Errorf("writing to a session: %w", err)
	}
	got, err := s.answers.ReadString('\n')
	if err != nil {
		return fmt.Errorf("reading from a session: %w", err)
	}
	if got != line+"\n" {
		return fmt.Errorf("a session answered %q to %q", got, line)
	}
	return nil
}

func (s *session) close() {
	s.cancel()
	_ = s.in.Close()
	<-s.done
}
