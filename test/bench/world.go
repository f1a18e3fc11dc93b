package main

import (
	"cmp"
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
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	account   = "bench" // a service account
	caSecret  = "pinniped-concierge-impersonation-proxy-ca-certificate"
)

// world is one cluster with the product installed, and a namespace full of ConfigMaps.
type world struct {
	*devinstall.Installation
	options *options
	errOut  io.Writer
	network *network // nil for loopback
	dir     string
	agent   *devinstall.Agent
	other   build // another build of the agent or the floor, nil without one
	admin   kubernetes.Interface
	dynamic dynamic.Interface
	proxyCA []byte
	users   int       // made so far
	webhook *webhook  // nil before a load needs it
	chain   [2][]byte // costly, with its key; empty before an attack needs it
	// attackers are users who attack together, none before an attack needs them.
	attackers [][2][]byte
	// passwords says that users can log in with a password.
	passwords bool
	front     string // the address at which clients find the proxy, if it is not the agent's own
}

func newWorld(ctx context.Context, o *options, errOut io.Writer) (*world, error) {
	programs := []string{o.Agent, o.CLI}
	if o.Other != "" && o.Other != floor {
		programs = append(programs, o.Other)
	}
	for _, path := range programs {
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
	if o.Network == networkNamespaces {
		if w.network, err = newNetwork(); err != nil {
			return w, err
		}
	}
	w.say("Starting a control plane and the agent; network: %s", w.network)
	cluster, err := devcluster.Start(ctx, devcluster.Options{
		Dir: o.Keep, ExtraAPIServerArgs: w.network.apiServerArgs(),
	})
	if err != nil {
		return w, err
	}
	w.Installation = &devinstall.Installation{Cluster: cluster, Binary: o.Agent, Deploy: o.Deploy}
	if w.Place, err = w.network.place(cluster.URL()); err != nil {
		return w, err
	}
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
	if err := w.startOther(ctx); err != nil {
		return w, err
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
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(w.proxyCA)
		dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
		connection, err := dialer.DialContext(ctx, "tcp", w.agent.ProxyAddress())
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// startOther starts the other build of the agent, or the floor, if one was given. It serves with the certificate that is
// there, and the cluster's own calls go on to ours.
func (w *world) startOther(ctx context.Context) error {
	if w.options.Other == "" {
		return nil
	}
	if w.options.Other == floor {
		started, err := w.startFloor(ctx, floor)
		if err == nil {
			w.other = started
		}
		return err
	}
	usual := w.Binary
	w.Binary = w.options.Other
	started, err := w.StartAgent(ctx, "other", w.options.Args...)
	w.Binary = usual
	if err != nil {
		return err
	}
	w.other = started
	if err := w.PointAt(ctx, w.agent); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := started.WaitReady(ctx); err != nil {
		return fmt.Errorf("%w; the other agent's log says:\n%s", err, tail(started.Log()))
	}
	return nil
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
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: "Group", Name: group},
			{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account},
		},
	}
	if _, err := w.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding the role: %w", err)
	}
	if err := poll(ctx, "the API server to know the role", func() error { return w.mayList(ctx) }); err != nil {
		return err
	}
	serviceAccount := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if _, err := w.admin.CoreV1().
		ServiceAccounts(namespace).
		Create(ctx, serviceAccount, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the service account: %w", err)
	}
	if err := w.fillWith(ctx, namespace, w.options.Objects, configMap); err != nil {
		return err
	}
	return w.fillWith(ctx, listed, w.options.Listed, listedConfigMap)
}

func (w *world) fillWith(ctx context.Context, namespace string, n int, object func(string) *corev1.ConfigMap) error {
	there := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	_, err := w.admin.CoreV1().Namespaces().Create(ctx, there, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the namespace: %w", err)
	}
	return parallel(ctx, 8, n, func(i int) error {
		_, err := w.admin.CoreV1().ConfigMaps(namespace).Create(ctx, object(objectName(i)), metav1.CreateOptions{})
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

// listedConfigMap has 2.8 kB as JSON, of which compression leaves three fifths, as of settings and keys.
func listedConfigMap(name string) *corev1.ConfigMap {
	const randomBytes, lines = 1600, 14
	seed := sha256.Sum256([]byte(name))
	data := make([]byte, randomBytes)
	_, _ = rand.NewChaCha8(seed).Read(data)
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: listed, Name: name},
		Data: map[string]string{
			"key":      base64.StdEncoding.EncodeToString(data),
			"settings": strings.Repeat("listen: 0.0.0.0:8080\n", lines),
		},
	}
}

// The ways to the API. The last is through another build of the agent, if there is one.
const (
	direct  = "direct"
	proxied = "proxied"
	other   = "other"
)

func (w *world) ways() []string {
	if w.other != nil {
		return []string{direct, proxied, other}
	}
	return []string{direct, proxied}
}

// agentOf is what a way leads through, for the direct one our agent.
func (w *world) agentOf(way string) build {
	if way == other {
		return w.other
	}
	return w.agent
}

// newUser makes a user that the proxy has not seen yet, and returns its configurations by way.
// The user has a client certificate of the cluster's CA, which both ways accept, and is in the group bench.
func (w *world) newUser(groups ...string) (map[string]*rest.Config, error) {
	w.users++
	config, err := w.Cluster.User(fmt.Sprintf("user-%d", w.users), groups...)
	if err != nil {
		return nil, err
	}
	return w.byWay(config)
}

// byWay returns the configurations of a user whom every way accepts.
func (w *world) byWay(config *rest.Config) (map[string]*rest.Config, error) {
	reached, err := w.network.ofClient(config)
	configs := map[string]*rest.Config{direct: reached}
	for _, way := range w.ways()[1:] {
		configs[way] = w.through(w.agentOf(way), config)
	}
	return configs, err
}

func (w *world) throughProxy(config *rest.Config) *rest.Config { return w.through(w.agent, config) }

func (w *world) through(agent build, config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host, config.CAData = "https://"+cmp.Or(w.front, agent.ProxyAddress()), w.proxyCA
	config.Dial = w.network.dialer()
	return config
}

// onLoopback puts the agents that are started from now on, and their clients, on loopback, until back is called.
func (w *world) onLoopback() (back func()) {
	usual, place := w.network, w.Place
	w.network, w.Place = nil, nil
	return func() { w.network, w.Place = usual, place }
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
