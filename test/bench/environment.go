package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

const (
	namespace       = "bench"
	listedNamespace = "bench-list"
	group           = "bench" // has the permissions that the loads need
	podName         = "exec"
	caSecret        = "pinniped-concierge-impersonation-proxy-ca-certificate"
	startTimeout    = time.Minute
)

// target is a way to reach the API server.
type target struct {
	name    string  // direct, ours, other or baseline
	process process // nil for direct
}

// process is a proxy process.
type process interface {
	PID() int
	Log() string
	ProxyAddress() string
}

// environment is a cluster with the product installed and with objects for the loads.
type environment struct {
	*devinstall.Installation
	options *options
	errOut  io.Writer
	procs   string // GOMAXPROCS of the agents
	admin   kubernetes.Interface
	proxyCA []byte
	targets []*target
	users   int
	node    *kubelet.Kubelet
	dir     string // of the pod
}

// newEnvironment can return an environment together with an error; then close it.
func newEnvironment(ctx context.Context, o *options, errOut io.Writer) (*environment, error) {
	for _, path := range []string{o.agent, o.other} {
		if _, err := os.Stat(path); path != "" && err != nil {
			return nil, fmt.Errorf("looking for the programs, which `make build` builds: %w", err)
		}
	}
	procs, err := shippedProcs(o.deploy)
	if err != nil {
		return nil, err
	}
	if o.procs > 0 {
		procs = strconv.Itoa(o.procs)
	}
	cluster, err := devcluster.Start(ctx, devcluster.Options{})
	if err != nil {
		return nil, err
	}
	e := &environment{options: o, errOut: errOut, procs: procs, Installation: &devinstall.Installation{
		Cluster: cluster, Binary: o.agent, Deploy: o.deploy, AgentEnv: []string{"GOMAXPROCS=" + procs},
	}}
	e.say("The control plane runs; GOMAXPROCS of the agents is %s", procs)
	if e.dir, err = os.MkdirTemp("", "pinniped-bench-"); err != nil {
		return e, fmt.Errorf("making a temporary directory: %w", err)
	}
	if e.admin, err = kubernetes.NewForConfig(cluster.AdminConfig()); err != nil {
		return e, err
	}
	if err := e.Install(ctx); err != nil {
		return e, err
	}
	if err := e.startTargets(ctx); err != nil {
		return e, err
	}
	return e, e.fill(ctx)
}

func (e *environment) close() error {
	var err error
	if e.node != nil {
		err = e.node.Close()
	}
	return errors.Join(err, e.Cluster.Stop(), os.RemoveAll(e.dir))
}

func (e *environment) say(format string, args ...any) {
	_, _ = fmt.Fprintf(e.errOut, "• "+format+"\n", args...)
}

// shippedProcs returns the GOMAXPROCS that the shipped Deployment gives the agent: its CPU request, rounded up.
func shippedProcs(deploy string) (string, error) {
	content, err := os.ReadFile(filepath.Join(deploy, "concierge", "deployment.yaml"))
	if err != nil {
		return "", fmt.Errorf("reading the shipped Deployment: %w", err)
	}
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var deployment appsv1.Deployment
		if err := yaml.Unmarshal([]byte(document), &deployment); err != nil {
			return "", fmt.Errorf("reading the shipped Deployment: %w", err)
		}
		for _, c := range deployment.Spec.Template.Spec.Containers {
			for _, v := range c.Env {
				if v.Name == "GOMAXPROCS" {
					request := c.Resources.Requests[corev1.ResourceCPU]
					return strconv.FormatInt(request.Value(), 10), nil // Value rounds up
				}
			}
		}
	}
	return "", errors.New("the shipped Deployment sets no GOMAXPROCS")
}

// startTargets starts all proxies, with the same certificate. The cluster's own calls go to ours.
func (e *environment) startTargets(ctx context.Context) error {
	agent, err := e.StartAgent(ctx, "agent")
	if err != nil {
		return err
	}
	if err := e.enableProxy(ctx, agent); err != nil {
		return fmt.Errorf("%w; the agent's log says:\n%s", err, tail(agent.Log()))
	}
	e.targets = []*target{{name: "direct"}, {"ours", agent}}
	if e.options.other != "" {
		e.Binary, e.Apart = e.options.other, true
		other, err := e.StartAgent(ctx, "other")
		if err != nil {
			return err
		}
		waiting, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		if err := other.WaitReady(waiting); err != nil {
			return fmt.Errorf("%w; the other agent's log says:\n%s", err, tail(other.Log()))
		}
		e.targets = append(e.targets, &target{"other", other})
	}
	if e.options.baseline {
		started, err := e.startBaseline(ctx)
		if err != nil {
			return err
		}
		e.targets = append(e.targets, &target{"baseline", started})
	}
	return nil
}

func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// enableProxy enables the impersonation proxy with a generated certificate, and waits for it.
func (e *environment) enableProxy(ctx context.Context, agent *devinstall.Agent) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client, err := dynamic.NewForConfig(e.Cluster.AdminConfig())
	if err != nil {
		return err
	}
	spec := fmt.Sprintf(
		`{"spec":{"impersonationProxy":{"mode":"enabled","service":{"type":"None"},"externalEndpoint":%q}}}`,
		agent.ProxyAddress(),
	)
	issuers := schema.GroupVersionResource{
		Group: "config.concierge.pinniped.dev", Version: "v1alpha1", Resource: "credentialissuers",
	}
	_, err = client.Resource(issuers).
		Patch(ctx, devinstall.CredentialIssuer, types.MergePatchType, []byte(spec), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("enabling the proxy: %w", err)
	}
	if err := e.WaitAvailable(ctx); err != nil {
		return err
	}
	if err := agent.WaitReady(ctx); err != nil {
		return err
	}
	return poll(ctx, "the proxy's certificate", func() error {
		secret, err := e.admin.CoreV1().Secrets(devinstall.Namespace).Get(ctx, caSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		e.proxyCA = secret.Data["ca.crt"]
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(e.proxyCA)
		dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
		connection, err := dialer.DialContext(ctx, "tcp", agent.ProxyAddress())
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// fill creates the objects that the loads request, and grants the group access.
func (e *environment) fill(ctx context.Context) error {
	for _, name := range []string{namespace, listedNamespace} {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := e.admin.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating the namespace: %w", err)
		}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: group}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch", "create"}},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"get", "create"}},
	}}
	if _, err := e.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the role: %w", err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: group},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: group},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: group}},
	}
	if _, err := e.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding the role: %w", err)
	}
	if err := poll(ctx, "the API server to know the role", func() error { return e.mayList(ctx) }); err != nil {
		return err
	}
	if err := e.createAll(ctx, e.options.objects, func(i int) *corev1.ConfigMap {
		return configMap(namespace, objectName(i))
	}); err != nil {
		return err
	}
	return e.createAll(ctx, e.options.listed, func(i int) *corev1.ConfigMap { return listedConfigMap(objectName(i)) })
}

// createAll creates n objects, several at a time.
func (e *environment) createAll(ctx context.Context, n int, object func(int) *corev1.ConfigMap) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error { return e.createConfigMap(ctx, object(i)) })
	}
	return group.Wait()
}

func (e *environment) createConfigMap(ctx context.Context, object *corev1.ConfigMap) error {
	_, err := e.admin.CoreV1().ConfigMaps(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a ConfigMap: %w", err)
	}
	return nil
}

// mayList returns nil if the group may list the objects.
func (e *environment) mayList(ctx context.Context) error {
	review, err := e.admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "someone", Groups: []string{group},
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

// configMap returns a ConfigMap with 1 kB of data.
func configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"data": strings.Repeat("0123456789abcdef", 64)},
	}
}

// listedConfigMap returns a ConfigMap of 2.8 kB as JSON. It compresses to three fifths, like settings and keys.
func listedConfigMap(name string) *corev1.ConfigMap {
	data := make([]byte, 1600)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(data)
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: listedNamespace, Name: name},
		Data: map[string]string{
			"key":      base64.StdEncoding.EncodeToString(data),
			"settings": strings.Repeat("listen: 0.0.0.0:8080\n", 14),
		},
	}
}

// newUser returns the configuration of a new user, with a client certificate of the cluster's CA, which all targets
// accept.
func (e *environment) newUser(t *target) (*rest.Config, error) {
	e.users++
	config, err := e.Cluster.User(fmt.Sprintf("user-%d", e.users), group)
	if err != nil || t.process == nil {
		return config, err
	}
	config = rest.CopyConfig(config)
	config.Host, config.CAData = "https://"+t.process.ProxyAddress(), e.proxyCA
	return config, nil
}

func (e *environment) newUserClient(t *target, connections int, keepAlive bool) (*client, error) {
	config, err := e.newUser(t)
	if err != nil {
		return nil, err
	}
	return newClient(config, connections, keepAlive)
}

// startNode starts a simulated node with a pod, once.
func (e *environment) startNode(ctx context.Context) (err error) {
	if e.node != nil {
		return nil
	}
	if e.node, err = kubelet.Start(ctx, e.Cluster, "node"); err != nil {
		return err
	}
	return e.node.Run(ctx, kubelet.Pod{
		Namespace: namespace, Name: podName, Command: []string{"sleep", "3600"}, Dir: e.dir,
	})
}

// poll calls try until it returns nil or ctx is done.
func poll(ctx context.Context, what string, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(err, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
