package kubeconfig_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

func TestTrusts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	write(t, file, "from a file")
	const endpoint = "https://proxy.example.com"
	bundle := base64.StdEncoding.EncodeToString([]byte("of the plugin"))
	plugin := func(args ...string) *clientcmdapi.AuthInfo {
		return &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Args: args}}
	}
	config := clientcmdapi.NewConfig()
	config.Clusters = map[string]*clientcmdapi.Cluster{
		"a-data":      {Server: "https://PROXY.example.com:443/", CertificateAuthorityData: []byte("data")},
		"b-file":      {Server: endpoint, CertificateAuthority: file},
		"c-gone":      {Server: endpoint, CertificateAuthority: file + ".gone"},
		"d-none":      {Server: endpoint},
		"e-insecure":  {Server: endpoint, InsecureSkipTLSVerify: true},
		"f-elsewhere": {Server: "https://proxy.example.com:8443"},
		"g-nil":       nil,
	}
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{
		"a-one":       plugin("login", "static", "--concierge-endpoint="+endpoint, "--concierge-ca-bundle-data="+bundle),
		"b-two":       plugin("login", "static", "--concierge-endpoint", endpoint, "--concierge-ca-bundle-data", bundle),
		"c-none":      plugin("login", "static", "--concierge-endpoint="+endpoint),
		"d-bad":       plugin("login", "static", "--concierge-endpoint="+endpoint, "--concierge-ca-bundle-data=%"),
		"e-elsewhere": plugin("login", "static", "--concierge-endpoint=https://elsewhere.example.com"),
		"f-other":     plugin("get-token"),
		"g-token":     {Token: "x"},
		"h-nil":       nil,
	}
	want := []struct {
		where, bundle string
		insecure, err bool
	}{
		{where: `cluster "a-data"`, bundle: "data"},
		{where: `cluster "b-file"`, bundle: "from a file"},
		{where: `cluster "c-gone"`, err: true},
		{where: `cluster "d-none"`},
		{where: `cluster "e-insecure"`, insecure: true},
		{where: `user "a-one"`, bundle: "of the plugin"},
		{where: `user "b-two"`, bundle: "of the plugin"},
		{where: `user "c-none"`},
		{where: `user "d-bad"`, err: true},
	}
	got := kubeconfig.Trusts(config, kubeconfig.Endpoint{URL: endpoint})
	if len(got) != len(want) {
		t.Fatalf("%d places, want %d: %+v", len(got), len(want), got)
	}
	for i, place := range got {
		if w := want[i]; place.Where != w.where || string(place.CABundle) != w.bundle || place.Insecure != w.insecure ||
			(place.Err != nil) != w.err {
			t.Errorf("place %d is %+v, want %+v", i, place, w)
		}
	}
}

// TestTwoArguments rotates a kubeconfig whose credential plugins have flags and values as separate arguments: the
// plugin's CA bundle must be rotated with the cluster's, or its user breaks when the old CA is removed.
func TestTwoArguments(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join("testdata", "two-arguments.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	with := func(bundle []byte) string {
		return strings.ReplaceAll(string(content), "${OLD}", base64.StdEncoding.EncodeToString(bundle))
	}
	path := filepath.Join(t.TempDir(), "config")
	write(t, path, with([]byte("of the old CA")))
	endpoint := kubeconfig.Endpoint{URL: "https://proxy.example.com"}
	places := []string{`cluster "kind-kind-pinniped"`, `user "kind-kind-pinniped"`, `user "tanzu"`}
	trusts := func(want []byte) {
		t.Helper()
		config, err := kubeconfig.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, place := range kubeconfig.Trusts(config, endpoint) {
			found = append(found, place.Where)
			if !bytes.Equal(place.CABundle, want) || place.Err != nil {
				t.Errorf("%s trusts %q, %v", place.Where, place.CABundle, place.Err)
			}
		}
		if diff := cmp.Diff(places, found); diff != "" {
			t.Errorf("places (-want +got):\n%s", diff)
		}
	}
	trusts([]byte("of the old CA"))
	rotation, err := kubeconfig.RotateFile(
		t.Context(),
		path,
		kubeconfig.Target{Endpoint: endpoint, CABundle: bundle(t)},
		false,
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range rotation.Entries {
		if entry.Outcome != kubeconfig.Rotated {
			t.Errorf("%+v", entry)
		}
	}
	trusts(bundle(t))
	if diff := cmp.Diff(with(bundle(t)), string(rotation.Content)); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, content := range map[string]string{
		"good": "kind: Config\nclusters:\n- name: a\n  cluster: {server: https://a.example, certificate-authority: " +
			"ca.pem}\n",
		"damaged": "kind: Config\nclusters:\n- name: a\n<<<<<<< HEAD\nusers: []\n",
		"other":   "kind: Pod\n",
	} {
		write(t, filepath.Join(folder, name), content)
	}
	config, err := kubeconfig.Load(filepath.Join(folder, "good"))
	if err != nil || config.Clusters["a"].CertificateAuthority != filepath.Join(folder, "ca.pem") {
		t.Errorf("%+v, %v", config, err)
	}
	for name, want := range map[string]error{
		"damaged": kubeconfig.ErrDamaged, "other": kubeconfig.ErrNotKubeconfig, "missing": fs.ErrNotExist,
	} {
		if _, err := kubeconfig.Load(filepath.Join(folder, name)); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEndpoint shows which addresses lead to an endpoint.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	asked := func(host string) (same, known bool) { return host == "here.example.com", host != "unknown.example.com" }
	endpoint := kubeconfig.Endpoint{
		URL: "https://proxy.example.com:8443", SameServer: asked,
		Names: []string{"127.0.0.1", "fd00::1", "[fd00::2]:443", "lb.example.net:443", "*.example.com", "::ffff:10.0.0.1"},
	}
	const here, perhaps, elsewhere = "here", "perhaps", "elsewhere"
	for server, want := range map[string]string{
		"https://proxy.example.com:8443":   here,
		"https://PROXY.example.com.:8443/": here,
		"https://proxy.example.com":        elsewhere,
		"http://proxy.example.com:8443":    elsewhere,
		"https://proxy.example.com:8443/x": elsewhere,
		"https://127.0.0.1:8443":           here,
		"https://127.0.0.1":                elsewhere,
		"https://[fd00:0::1]:8443":         here,
		"https://[fd00::2]":                here,
		"https://lb.example.net":           here,
		"https://lb.example.net:8443":      elsewhere,
		"https://10.0.0.1:8443":            here,
		"https://here.example.com:8443":    here,
		"https://there.example.com:8443":   elsewhere,
		"https://unknown.example.com:8443": perhaps,
		"https://unknown.example.com":      elsewhere,
		"https://a.here.example.com:8443":  elsewhere,
		"https://example.com:8443":         elsewhere,
		"not a URL":                        elsewhere,
		"":                                 elsewhere,
	} {
		config := clientcmdapi.NewConfig()
		config.Clusters["a"] = &clientcmdapi.Cluster{Server: server}
		got := elsewhere
		for _, place := range kubeconfig.Trusts(config, endpoint) {
			if got = here; place.Uncertain {
				got = perhaps
			}
		}
		if got != want {
			t.Errorf("%q leads %s, want %s", server, got, want)
		}
	}
}

// TestCAFile shows that a cluster whose CA file already contains the new CA is current.
func TestCAFile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "config")
	write(
		t,
		path,
		"kind: Config\nclusters:\n- name: a\n  cluster: {server: 'https://proxy.example.com', certificate-authority: "+
			"ca.pem}\n",
	)
	to := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com"}, CABundle: bundle(t)}
	for _, test := range []struct {
		file string
		want kubeconfig.Outcome
	}{
		{"nothing\n", kubeconfig.Skipped},
		{string(bundle(t)), kubeconfig.Current},
	} {
		write(t, filepath.Join(folder, "ca.pem"), test.file)
		rotation, err := kubeconfig.RotateFile(t.Context(), path, to, false)
		if err != nil || len(rotation.Entries) != 1 || rotation.Entries[0].Outcome != test.want {
			t.Errorf("want %s, got %+v, %v", test.want, rotation, err)
		}
	}
}
