package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

const (
	namespace = "bench"
	group     = "bench"
	caSecret  = "pinniped-concierge-impersonation-proxy-ca-certificate"
)

// world is one cluster with the product installed, and a namespace full of ConfigMaps.
type world struct {
	*devinstall.Installation
	options *options
	errOut  io.Writer
	dir     string
	agent   *devinstall.Agent
	admin   kubernetes.Interface
	dynamic dynamic.Interface
	proxyCA []byte
	users   int      // made so far
	webhook *webhook // nil before a load needs it
}

func newWorld(ctx context.Context, o *options, errOut io.Writer) (*world, error) {
	for _, path := range []string{o.Agent, o.CLI} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("looking for the programs, which `make build` builds: %w", err)
		}
	}
	if _, err := readProcess(os.Getpid()); err != nil {
		return nil, fmt.Errorf("measuring needs /proc, as on Linux: %w", err)
	}
	w := &world{options: o, errOut: errOut}
	var err error
	if w.dir, err = os.MkdirTemp("", "pinniped-bench-"); err != nil {
		return nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	w.say("Starting a control plane and the agent")
	cluster, err := devcluster.Start(ctx, devcluster.Options{Dir: o.Keep})
	if err != nil {
		return w, err
	}
	w.Installation = &devinstall.Installation{Cluster: cluster, Binary: o.Agent, Deploy: o.Deploy}
	if w.admin, err = kubernetes.NewForConfig(cluster.AdminConfig()); err != nil {
		return w, err
	}
	if w.dynamic, err = dynamic.NewForConfig(cluster.AdminConfig()); err != nil {
		return w, err
	}
	if err := w.Install(ctx); err != nil {
		return w, err
	}
	if w.agent, err = w.StartAgent(ctx, "agent", o.Args...); err != nil {
		return w, err
	}
	if err := w.startProxy(ctx); err != nil {
		return w, fmt.Errorf("%w; the agent's log says:\n%s", err, tail(w.agent.Log()))
	}
	return w, w.fill(ctx)
}

// close ends everything and removes it.
func (w *world) close() error {
	var err error
	if w.webhook != nil {
		err = w.webhook.server.Close()
	}
	if w.Installation != nil {
		err = errors.Join(err, w.Cluster.Stop())
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// say tells the human who waits what goes on.
func (w *world) say(format string, args ...any) {
	_, _ = fmt.Fprintf(w.errOut, "• "+format+"\n", args...)
}

func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// startProxy switches the impersonation proxy on, with a generated certificate, and waits for it.
func (w *world) startProxy(ctx context.Context) error {
	issuers := w.dynamic.Resource(
		schema.GroupVersionResource{
			Group:    "config.concierge.pinniped.dev",
			Version:  "v1alpha1",
			Resource: "credentialissuers",
		},
	)
	spec := fmt.Sprintf(
		`{"spec":{"impersonationProxy":{"mode":"enabled","service":{"type":"None"},"externalEndpoint":%q}}}`,
		w.agent.ProxyAddress(),
	)
	if _, err := issuers.Patch(
		ctx,
		devinstall.CredentialIssuer,
		types.MergePatchType,
		[]byte(spec),
		metav1.PatchOptions{},
	); err != nil {
		return fmt.Errorf("switching the proxy on: %w", err)
	}
	if err := w.WaitAvailable(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := w.agent.WaitReady(ctx); err != nil {
		return err
	}
	return poll(ctx, "the proxy's CA certificate", func() error {
		secret, err := w.admin.CoreV1().Secrets(devinstall.Namespace).Get(ctx, caSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		w.proxyCA = secret.Data["ca.crt"]
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.agent.ProxyAddress())
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// fill makes the objects that requests are for, and permits the group bench to handle them.
func (w *world) fill(ctx context.Context) error {
	if _, err := w.admin.CoreV1().
		Namespaces().
		Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the namespace: %w", err)
	}
	rules := []rbacv1.PolicyRule{
		{
			APIGroups: []string{""},
			Resources: []string{"configmaps"},
			Verbs:     []string{"get", "list", "watch", "create", "update"},
		},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "pods/exec"}, Verbs: []string{"get", "create"}},
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: group}, Rules: rules}
	if _, err := w.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the role: %w", err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: group},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: group},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: group}},
	}
	if _, err := w.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding the role: %w", err)
	}
	if err := poll(ctx, "the API server to know the role", func() error { return w.mayList(ctx) }); err != nil {
		return err
	}
	return parallel(ctx, 8, w.options.Objects, func(i int) error {
		_, err := w.admin.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(objectName(i)), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("making a ConfigMap: %w", err)
		}
		return nil
	})
}

// mayList returns nil if the group bench may list the objects.
func (w *world) mayList(ctx context.Context) error {
	review, err := w.admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "anybody",
			Groups: []string{group},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: "list", Resource: "configmaps",
			},
		},
	}, metav1.CreateOptions{})
	if err == nil && !review.Status.Allowed {
		err = errors.New(review.Status.Reason)
	}
	return err
}

func objectName(i int) string { return fmt.Sprintf("object-%d", i) }

// configMap holds 1 kB.
func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"data": strings.Repeat("0123456789abcdef", 64)},
	}
}

// The two ways to the API.
const (
	direct  = "direct"
	proxied = "proxied"
)

func ways() []string { return []string{direct, proxied} }

// newUser makes a user that the proxy has not seen yet, and returns its configurations by way: direct and proxied.
// The user has a client certificate of the cluster's CA, which both ways accept, and is in the group bench.
func (w *world) newUser(groups ...string) (map[string]*rest.Config, error) {
	w.users++
	config, err := w.Cluster.User(fmt.Sprintf("user-%d", w.users), groups...)
	if err != nil {
		return nil, err
	}
	return map[string]*rest.Config{direct: config, proxied: w.throughProxy(config)}, nil
}

func (w *world) throughProxy(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host, config.CAData = "https://"+w.agent.ProxyAddress(), w.proxyCA
	return config
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

// create makes an object of one of the product's own kinds.
func (w *world) create(ctx context.Context, resource schema.GroupVersionResource, object map[string]any) error {
	_, err := w.dynamic.Resource(resource).Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	return err
}

// poll calls try until it returns nil, or ctx ends.
func poll(ctx context.Context, what string, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (%w)", what, err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
