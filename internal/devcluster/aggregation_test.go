package devcluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestAggregatedAPIOnThisMachine(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, Options{})
	ca, err := certs.NewCA("aggregated", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := ca.IssueServing(certs.SANs{DNSNames: []string{"api.default.svc"}}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	port := serveAggregatedAPI(t, cluster, serving)

	// As in a manifest: an ordinary Service, which has no endpoints on a cluster without nodes.
	manifests := t.TempDir()
	writeFile(t, filepath.Join(manifests, "all.yaml"), fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: api, namespace: default}
spec:
  selector: {app: api}
  ports: [{port: 443, targetPort: 10250}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.demo.example.com}
spec:
  group: demo.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 10
  caBundle: %s
  service: {namespace: default, name: api, port: 443}
`, base64.StdEncoding.EncodeToString(ca.CertPEM())), 0o600)
	if err := cluster.Install(t.Context(), manifests); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call changes nothing
		if err := cluster.PointServiceAt(t.Context(), "default", "api", port); err != nil {
			t.Fatal(err)
		}
		if err := cluster.PointAPIServiceAt(t.Context(), "v1.demo.example.com", port); err != nil {
			t.Fatal(err)
		}
	}

	jane, err := cluster.User("jane", "readers")
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error { // the aggregator checks every few seconds
		_, err := get(client, cluster.URL()+"/apis/demo.example.com/v1")
		return err
	})
	if client, err = rest.HTTPClientFor(jane); err != nil {
		t.Fatal(err)
	}
	got, err := get(client, cluster.URL()+"/apis/demo.example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	want := `by "front-proxy-client" for "jane" in ["readers" "system:authenticated"]`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	t.Run("creates a Service that does not exist", func(t *testing.T) {
		if err := cluster.PointServiceAt(t.Context(), "default", "new", 1234); err != nil {
			t.Fatal(err)
		}
		client, err := dynamic.NewForConfig(cluster.AdminConfig())
		if err != nil {
			t.Fatal(err)
		}
		service, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).
			Namespace("default").Get(t.Context(), "new", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if name, _, _ := unstructured.NestedString(service.Object, "spec", "externalName"); name != "localhost" {
			t.Errorf("want externalName localhost, got %q", name)
		}
	})
	t.Run("does not invent an APIService", func(t *testing.T) {
		if err := cluster.PointAPIServiceAt(t.Context(), "v1.none.example.com", 1234); !apierrors.IsNotFound(err) {
			t.Errorf("want NotFound, got %v", err)
		}
	})
}

// serveAggregatedAPI serves an API that responds with its client and the user. It verifies clients by the cluster's
// settings.
func serveAggregatedAPI(t *testing.T, cluster *Cluster, serving *certs.KeyPair) int {
	t.Helper()
	certificate, err := tls.X509KeyPair(serving.CertPEM, serving.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	frontProxies, err := os.ReadFile(filepath.Join(cluster.Dir(), "pki", "front-proxy-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(frontProxies)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "no client certificate", http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, "by %q for %q in %q", r.TLS.PeerCertificates[0].Subject.CommonName,
			r.Header.Get("X-Remote-User"), r.Header.Values("X-Remote-Group"))
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    roots,
		MinVersion:   tls.VersionTLS13,
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().(*net.TCPAddr).Port
}

func get(client *http.Client, url string) (string, error) {
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", errors.New(response.Status + ": " + strings.TrimSpace(string(body)))
	}
	return string(body), nil
}
