package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// ContainerName is the name of the only container of a pod.
const ContainerName = "main"

// outputDelay is how long to wait for the output of an ended process, which other processes may still have open.
const outputDelay = 5 * time.Second

// Pod configures a pod.
type Pod struct {
	Namespace, Name string
	// Labels are for selectors, such as those of Services.
	Labels map[string]string
	// Command is the container's program and its arguments. It runs on this machine.
	Command []string
	// Dir is the working directory and HOME of its processes.
	Dir string
}

// container is a pod's only container: a process, its output so far, and its input.
type container struct {
	dir   string
	stdin io.Writer
	log   *transcript
	ended chan struct{} // closed when the process has ended
}

// Run creates a pod on this node, starts its container, and sets its status to running.
func (k *Kubelet) Run(ctx context.Context, pod Pod) error {
	started, err := k.start(pod)
	if err != nil {
		return fmt.Errorf("starting the container of pod %q: %w", pod.Namespace+"/"+pod.Name, err)
	}
	k.mu.Lock()
	k.pods[podKey{pod.Namespace, pod.Name}] = started
	k.mu.Unlock()
	object, err := k.client.Pods(pod.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Labels: pod.Labels},
		Spec: corev1.PodSpec{
			NodeName: k.node,
			Containers: []corev1.Container{{
				Name: ContainerName, Image: "example.com/none", Command: pod.Command, Stdin: true, SecurityContext: restricted(),
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating pod %q: %w", pod.Namespace+"/"+pod.Name, err)
	}
	object.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: ContainerName, Ready: true, ContainerID: "process://" + pod.Name,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}},
	}
	_, err = k.client.Pods(pod.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

// restricted returns the security context that restricted Pod Security requires. It does not affect the process, which
// runs as this user.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(bool),
		RunAsNonRoot:             ptr.To(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func (k *Kubelet) start(pod Pod) (*container, error) {
	if len(pod.Command) == 0 {
		return nil, errors.New("no command")
	}
	c := &container{dir: pod.Dir, log: newTranscript(), ended: make(chan struct{})}
	command := c.command(k.live, pod.Command)
	command.Stdout, command.Stderr = c.log, c.log
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	if err := command.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.ended)
		defer c.log.end()
		_ = command.Wait()
	}()
	return c, nil
}

// command returns a process of the container. It is killed, with its children, when ctx ends.
func (c *container) command(ctx context.Context, args []string) *exec.Cmd {
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Dir = c.dir
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "TERM=xterm"}
	command.WaitDelay = outputDelay
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	return command
}

// transcript is the output of a container. Readers follow it at their own pace.
type transcript struct {
	mu      sync.Mutex
	written []byte
	done    bool
	changed chan struct{} // closed and replaced on every change
}

func newTranscript() *transcript { return &transcript{changed: make(chan struct{})} }

// Write implements io.Writer.
func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written = append(t.written, p...)
	close(t.changed)
	t.changed = make(chan struct{})
	return len(p), nil
}

func (t *transcript) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = true
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *transcript) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.written)
}

// after returns the output from an offset on, whether the container has ended, and a channel for the next change.
func (t *transcript) after(offset int) (more []byte, done bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written[offset:len(t.written):len(t.written)], t.done, t.changed
}

// follow writes the output from an offset on to w, until the container ends, ctx ends, or w fails.
func (t *transcript) follow(ctx context.Context, offset int, w io.Writer) error {
	for {
		more, done, changed := t.after(offset)
		if len(more) > 0 {
			if _, err := w.Write(more); err != nil {
				return err
			}
			offset += len(more)
			continue
		}
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
