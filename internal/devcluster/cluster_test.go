package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	selfReviews = schema.GroupVersionResource{
		Group:    "authentication.k8s.io",
		Version:  "v1",
		Resource: "selfsubjectreviews",
	}
)

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

func TestTwoClustersAtOnce(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	type result struct {
		cluster *Cluster
		err     error
	}
	results := make(chan result, 2)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for range 2 {
		go func() {
			cluster, err := Start(ctx, Options{})
			results <- result{cluster, err}
		}()
	}
	var clusters []*Cluster
	for range 2 {
		got := <-results
		if got.err != nil {
			t.Error(got.err)
			continue
		}
		clusters = append(clusters, got.cluster)
		t.Cleanup(func() {
			if err := got.cluster.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if t.Failed() {
		t.FailNow()
	}
	one, other := clusters[0], clusters[1]
	if one.URL() == other.URL() || one.Dir() == other.Dir() {
		t.Fatalf("want clusters of their own, got %s in %s and %s in %s", one.URL(), one.Dir(), other.URL(), other.Dir())
	}
	createConfigMap(t, one.AdminConfig(), "only-here")
	if _, err := getConfigMap(t, other.AdminConfig(), "only-here"); !apierrors.IsNotFound(err) {
		t.Errorf("want the object in one cluster only, got %v", err)
	}

	// A client certificate of the other cluster is refused: the clusters do not share a CA.
	unrelated := one.AdminConfig()
	unrelated.Host, unrelated.CAData = other.URL(), other.CABundle()
	if _, err := getConfigMap(t, unrelated, "only-here"); !apierrors.IsUnauthorized(err) {
		t.Errorf("want 401 for the other cluster's admin, got %v", err)
	}

	// Stopping one does not affect the other, and removes its files.
	dir := one.Dir()
	for range 2 {
		if err := one.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("want the temporary directory gone, got %v", err)
	}
	if err := one.RestartAPIServer(t.Context()); !errors.Is(err, errStopped) {
		t.Errorf("want %q, got %v", errStopped, err)
	}
	createConfigMap(t, other.AdminConfig(), "still-here")
}

func TestUsers(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, Options{Dir: filepath.Join(t.TempDir(), "cluster"), AuditPolicy: []byte(auditPolicy)})

	jane, err := cluster.User("jane", "readers", "writers")
	if err != nil {
		t.Fatal(err)
	}
	createObject(
		t,
		cluster.AdminConfig(),
		schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"},
		"v1",
		"ServiceAccount",
		"robot",
	)
	robot, err := cluster.ServiceAccountConfig(t.Context(), "default", "robot")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cluster.Dir(), "copy.kubeconfig")
	if err := cluster.WriteKubeconfig(path, robot); err != nil {
		t.Fatal(err)
	}

	for _, test := range []struct {
		name   string
		config *rest.Config
		want   identity
	}{
		{"admin", cluster.AdminConfig(), identity{"admin", []string{"system:masters", "system:authenticated"}}},
		{
			"admin's kubeconfig", loadKubeconfig(t, cluster.AdminKubeconfig()),
			identity{"admin", []string{"system:masters", "system:authenticated"}},
		},
		{"user", jane, identity{"jane", []string{"readers", "writers", "system:authenticated"}}},
		{"service account", robot, identity{
			"system:serviceaccount:default:robot",
			[]string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"},
		}},
		{"service account's kubeconfig", loadKubeconfig(t, path), identity{
			"system:serviceaccount:default:robot",
			[]string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"},
		}},
	} {
		t.Run("knows the "+test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, whoAmI(t, test.config)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}

	t.Run("lets RBAC decide what a user may do", func(t *testing.T) {
		if _, err := getConfigMap(t, jane, "any"); !apierrors.IsForbidden(err) {
			t.Errorf("want Forbidden, got %v", err)
		}
	})
	t.Run("knows anonymous requests", func(t *testing.T) {
		anonymous := rest.AnonymousClientConfig(cluster.AdminConfig())
		if _, err := getConfigMap(t, anonymous, "any"); !apierrors.IsForbidden(err) {
			t.Errorf("want Forbidden, got %v", err)
		}
	})
	t.Run("has no service account that does not exist", func(t *testing.T) {
		_, err := cluster.ServiceAccountConfig(t.Context(), "default", "nobody")
		if !apierrors.IsNotFound(err) || !strings.Contains(errorText(err), `service account "default/nobody"`) {
			t.Errorf("want NotFound with the name, got %v", err)
		}
	})
	t.Run("has no user without a name", func(t *testing.T) {
		if _, err := cluster.User(""); err == nil {
			t.Error("want an error")
		}
	})
	t.Run("writes files that only the owner reads", func(t *testing.T) {
		for _, file := range []string{
			cluster.AdminKubeconfig(), path, filepath.Join(cluster.Dir(), "pki", "client-ca.key"),
			filepath.Join(cluster.Dir(), "logs", "etcd.log"),
		} {
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("want mode 0600 of %s, got %v, %v", file, info, err)
			}
		}
	})
	t.Run("writes the audit log before it answers", func(t *testing.T) {
		createObject(t, cluster.AdminConfig(), secrets, "v1", "Secret", "audited")
		if !audited(t, cluster.AuditLog(), "create", "secrets", "audited", "admin") {
			t.Error("want an event of the request in the audit log")
		}
	})
	t.Run("keeps a directory that it was given", func(t *testing.T) {
		if err := cluster.Stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(cluster.AuditLog()); err != nil {
			t.Error(err)
		}
	})
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, Options{DisableAnonymous: true})
	admin, url := cluster.AdminConfig(), cluster.URL()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	createConfigMap(t, admin, "kept")
	if _, err := getConfigMap(t, rest.AnonymousClientConfig(admin), "kept"); !apierrors.IsUnauthorized(err) {
		t.Errorf("want 401 without credentials when anonymous requests are disabled, got %v", err)
	}

	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(url, "https://")
	if connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address); err == nil {
		_ = connection.Close()
		t.Error("want connections refused while the API server is stopped")
	}
	if listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address); err == nil {
		_ = listener.Close()
		t.Error("want the port kept while the API server is stopped, but another could take it")
	}
	if err := cluster.RestartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := getConfigMap(t, admin, "kept"); err != nil {
		t.Errorf("after a stop and a start of the API server: %v", err)
	}
	if err := cluster.RestartAPIServer(ctx); err != nil { // while it runs
		t.Fatal(err)
	}
	createConfigMap(t, admin, "kept-too")

	if err := cluster.StopEtcd(); err != nil {
		t.Fatal(err)
	}
	short, cancelShort := context.WithTimeout(ctx, 3*time.Second)
	defer cancelShort()
	client, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Resource(configMaps).
		Namespace("default").
		Create(short, object("v1", "ConfigMap", "lost"), metav1.CreateOptions{})
	if err == nil {
		t.Error("want a write to fail while etcd is stopped")
	}
	if err := cluster.RestartEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "kept-too"} {
		if _, err := getConfigMap(t, admin, name); err != nil {
			t.Errorf("after a restart of etcd: %v", err)
		}
	}
	if got := cluster.URL(); got != url {
		t.Errorf("want the address %s kept, got %s", url, got)
	}
}

// TestAProgramThatWaitsForTheAPIServer starts a program that is only ready once the API server is. It can be started
// first, and does not block the start of the API server.
func TestAProgramThatWaitsForTheAPIServer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}) // closed when a start waits for a program
	ask := sync.OnceFunc(func() { close(asked) })
	begin := func(name string, ready func(context.Context) error) chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := cluster.StartProgram(
				ctx,
				ProgramOptions{Name: name, Path: "/bin/sleep", Args: []string{"600"}, Ready: func(ctx context.Context) error {
					ask()
					return ready(ctx)
				}},
			)
			ended <- err
		}()
		return ended
	}
	waiting := begin("waits", cluster.apiReady)
	select {
	case <-asked:
	case err := <-waiting:
		t.Fatalf("want the program to wait, got %v", err)
	}
	if err := cluster.RestartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}

	// Stopping the cluster also ends a pending start.
	asked = make(chan struct{})
	ask = sync.OnceFunc(func() { close(asked) })
	never := begin("never", func(context.Context) error { return errors.New("not yet") })
	select {
	case <-asked:
	case err := <-never:
		t.Fatalf("want the program to wait, got %v", err)
	}
	if err := cluster.Stop(); err != nil {
		t.Error(err)
	}
	if err := <-never; err == nil || !strings.Contains(err.Error(), "starting never: it ended before it was ready") {
		t.Errorf("want the start to fail with the cluster, got %v", err)
	}
	if _, err := cluster.StartProgram(ctx, ProgramOptions{Name: "late", Path: "/bin/sleep"}); !errors.Is(err, errStopped) {
		t.Errorf("want %q, got %v", errStopped, err)
	}
}

func TestFailingStart(t *testing.T) {
	t.Parallel()
	needPrograms(t)

	for _, test := range []struct {
		name    string
		options Options
		want    []string
	}{
		{
			name:    "shows an unknown flag of the API server",
			options: Options{ExtraAPIServerArgs: []string{"--no-such-flag=1"}},
			want: []string{"starting kube-apiserver: it ended before it was ready: exit status 1", "unknown flag: " +
				"--no-such-flag"},
		},
		{
			name:    "shows a refused value of a flag",
			options: Options{ExtraAPIServerArgs: []string{"--service-cluster-ip-range=nonsense"}},
			want: []string{
				"starting kube-apiserver: it ended before it was ready: exit status 1",
				"service-cluster-ip-range[0] is not a valid cidr",
			},
		},
		{
			name:    "shows what was waited for when the time is up",
			options: Options{StartTimeout: time.Nanosecond},
			want:    []string{"starting etcd: waiting until it is ready: context deadline exceeded"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "cluster")
			test.options.Dir = dir
			cluster, err := Start(t.Context(), test.options)
			if err == nil {
				_ = cluster.Stop()
				t.Fatal("want an error")
			}
			for _, want := range append(test.want, "the end of its log", dir) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in the error, got:\n%v", want, err)
				}
			}
		})
	}

	t.Run("leaves the logs, and nothing else, in a temporary directory", func(t *testing.T) {
		t.Parallel()
		options, temporary, err := Options{ExtraAPIServerArgs: []string{"--no-such-flag=1"}}.complete()
		if err != nil || !temporary {
			t.Fatalf("want a temporary directory, got %t, %v", temporary, err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(options.Dir) })
		paths := map[string]string{}
		for _, name := range []string{etcdProgram, apiServerProgram} {
			if paths[name], err = systemFinder().program(name); err != nil {
				t.Fatal(err)
			}
		}
		cluster := &Cluster{options: options, dir: options.Dir, temporary: true}
		if err := cluster.bringUp(t.Context(), paths, time.Now()); err == nil {
			t.Error("want an error")
		}
		if err := cluster.giveUp(); err != nil {
			t.Error(err)
		}
		left, err := filepath.Glob(filepath.Join(options.Dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{filepath.Join(options.Dir, "logs")}, left); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})

	t.Run("stops waiting when the context is cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Start(ctx, Options{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
			t.Errorf("want %q, got %v", context.Canceled, err)
		}
	})
}

func TestControllerManager(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	if _, err := systemFinder().program(controllerManagerProgram); err != nil {
		t.Skip(err)
	}
	cluster := startCluster(t, Options{ControllerManager: true})
	client, err := dynamic.NewForConfig(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.ServiceAccountConfig(t.Context(), "default", "default"); err != nil {
		t.Errorf("want a default service account: %v", err)
	}
	if _, err := client.Resource(namespaces).
		Create(t.Context(), object("v1", "Namespace", "brief"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.Resource(namespaces).Delete(t.Context(), "brief", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		_, err := client.Resource(namespaces).Get(t.Context(), "brief", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errStillThere, err)
	})
}

type identity struct {
	Username string
	Groups   []string
}

// whoAmI returns the identity that the API server authenticates.
func whoAmI(t *testing.T, config *rest.Config) identity {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Resource(selfReviews).
		Create(t.Context(), object("authentication.k8s.io/v1", "SelfSubjectReview", ""), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var who identity
	who.Username, _, _ = unstructured.NestedString(answer.Object, "status", "userInfo", "username")
	who.Groups, _, _ = unstructured.NestedStringSlice(answer.Object, "status", "userInfo", "groups")
	return who
}

func loadKubeconfig(t *testing.T, path string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// audited reports whether the audit log has an event of this request.
func audited(t *testing.T, path, verb, resource, name, username string) bool {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var event struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Name string }
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("parsing audit event %q: %v", line, err)
		}
		if event.Verb == verb && event.ObjectRef.Resource == resource && event.ObjectRef.Name == name &&
			event.User.Username == username {
			return true
		}
	}
	return false
}

func object(apiVersion, kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name},
	}}
}

func createConfigMap(t *testing.T, config *rest.Config, name string) {
	t.Helper()
	createObject(t, config, configMaps, "v1", "ConfigMap", name)
}

func createObject(
	t *testing.T,
	config *rest.Config,
	resource schema.GroupVersionResource,
	apiVersion, kind, name string,
) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Resource(resource).
		Namespace("default").
		Create(t.Context(), object(apiVersion, kind, name), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating %s %q: %v", kind, name, err)
	}
}

func getConfigMap(t *testing.T, config *rest.Config, name string) (*unstructured.Unstructured, error) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(configMaps).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
}
