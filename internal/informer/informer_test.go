package informer

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

func TestWatcher(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{})
	client, err := corev1client.NewForConfig(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	var changes, others atomic.Int64
	watched := types.NamespacedName{Namespace: "default", Name: "watched"}
	watcher := New(t.Context(), client.RESTClient(), "secrets", &corev1.Secret{}, func(name types.NamespacedName) {
		if name == watched {
			changes.Add(1)
		} else {
			others.Add(1)
		}
	})
	if _, found, err := watcher.Get(t.Context(), watched); err != nil || found {
		t.Fatalf("before it exists: found %v, %v", found, err)
	}

	secrets := client.Secrets("default")
	for _, name := range []string{"watched", "neighbour"} {
		if _, err := secrets.Create(
			t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"a": "1"}},
			metav1.CreateOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(want string) func() error {
		return func() error {
			secret, found, err := watcher.Get(t.Context(), watched)
			if err != nil {
				return err
			}
			if got := ""; found {
				if got = string(secret.Data["a"]); got == want && len(secret.ManagedFields) == 1 &&
					secret.ManagedFields[0].FieldsV1 == nil &&
					!secret.ManagedFields[0].Time.IsZero() {
					return nil
				}
			} else if want == "" {
				return nil
			}
			return fmt.Errorf("found %v, %+v", found, secret)
		}
	}
	testkit.Eventually(t, 5*time.Second, holds("1"))
	set := func(value string) {
		t.Helper()
		if _, err := secrets.Update(
			t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "watched"}, StringData: map[string]string{"a": value}},
			metav1.UpdateOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	set("2")
	testkit.Eventually(t, 2*time.Second, holds("2"))

	// During an outage, the last known object is returned; later changes arrive soon after it.
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := holds("2")(); err != nil {
		t.Errorf("during the outage: %v", err)
	}
	if err := cluster.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	set("3")
	testkit.Eventually(t, 15*time.Second, holds("3"))

	if err := secrets.Delete(t.Context(), "watched", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 2*time.Second, holds(""))
	if changes.Load() < 4 || others.Load() != 0 {
		t.Errorf("%d changes of the object and %d of others were told", changes.Load(), others.Load())
	}

	watcher.Forget(func(types.NamespacedName) bool { return false })
	if len(watcher.watches) != 0 {
		t.Error("a forgotten object is still watched")
	}
}

// TestWatcherSaysWhatIsNotPermitted checks that the error of the first read has the API server's message, and not only
// a timeout.
func TestWatcherSaysWhatIsNotPermitted(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{})
	nobody, err := cluster.User("nobody")
	if err != nil {
		t.Fatal(err)
	}
	client, err := corev1client.NewForConfig(nobody)
	if err != nil {
		t.Fatal(err)
	}
	watcher := New(t.Context(), client.RESTClient(), "secrets", &corev1.Secret{}, nil)
	_, _, err = watcher.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "secret"})
	var status interface{ Status() metav1.Status }
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonForbidden {
		t.Errorf("got %v, want Forbidden", err)
	}
}

// TestWatcherOfAKindThatIsAway has a resource without a definition: the first read returns at once that there is no
// object. When the definition is created, its objects are returned.
func TestWatcherOfAKindThatIsAway(t *testing.T) {
	t.Parallel()
	var there atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !there.Load(), r.URL.Query().Has("sendInitialEvents"):
			http.NotFound(w, r) // as the API server responds for an unknown group
		case r.URL.Query().Get("watch") != "":
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"2"},`+
				`"items":[{"metadata":{"name":"kept","namespace":"default","resourceVersion":"1"}}]}`)
		}
	}))
	t.Cleanup(server.CloseClientConnections) // a watch would block Close
	client, err := corev1client.NewForConfig(&rest.Config{
		Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 100)
	watcher := New(t.Context(), client.RESTClient(), "secrets", &corev1.Secret{}, func(types.NamespacedName) {
		changed <- struct{}{}
	})
	name := types.NamespacedName{Namespace: "default", Name: "kept"}
	if _, found, err := watcher.Get(t.Context(), name); found || err != nil {
		t.Fatalf("without the kind: found %v, error %v", found, err)
	}
	<-changed // of the first read
	there.Store(true)
	<-changed
	if _, found, err := watcher.Get(t.Context(), name); !found || err != nil {
		t.Errorf("with the kind: found %v, error %v", found, err)
	}
}
