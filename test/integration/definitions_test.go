package integration

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// Modules with the CustomResourceDefinitions that the documents and the manifests need.
const (
	certManagerModule = "github.com/cert-manager/cert-manager@v1.21.2"
	contourModule     = "github.com/projectcontour/contour@v1.33.8"
	gatewayModule     = "sigs.k8s.io/gateway-api@v1.6.0"
	prometheusModule  = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

// define installs CustomResourceDefinitions by name until the end of the test. They come from a file or folder of a Go
// module, which `go mod download` fetches once.
func (w *world) define(t *testing.T, module, path string, names ...string) {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	download.Dir = t.TempDir() // not in our module: nothing is built
	output, err := download.Output()
	var found struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(output, &found); jsonErr != nil || found.Error != "" {
		t.Skipf("%s cannot be had here: %v %s", module, err, found.Error)
	}
	files := []string{filepath.Join(found.Dir, path)}
	if inside, err := filepath.Glob(filepath.Join(found.Dir, path, "*.yaml")); err == nil && len(inside) > 0 {
		files = inside
	}
	var wanted []string
	for _, file := range files {
		content := must.Get(os.ReadFile(file))(t)
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			for _, name := range names {
				if strings.Contains(document, "\n  name: "+name+"\n") || strings.Contains(document, "\n  name: \""+name+"\"\n") {
					wanted = append(wanted, document)
				}
			}
		}
	}
	if len(wanted) != len(names) {
		t.Fatalf("%s has %d of %v", module, len(wanted), names)
	}
	manifest := fileWith(t, "definitions.yaml", []byte(strings.Join(wanted, "\n---\n")))
	must.Do(t, w.Cluster.Install(t.Context(), manifest))
	t.Cleanup(func() {
		remove := exec.CommandContext(context.WithoutCancel(t.Context()), w.kubectl, "delete", "--filename="+manifest,
			"--kubeconfig="+w.Cluster.AdminKubeconfig())
		if output, err := remove.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, output)
		}
	})
}
