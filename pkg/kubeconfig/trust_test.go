package kubeconfig_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

func TestTrusts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
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
	got := kubeconfig.Trusts(config, endpoint)
	if len(got) != len(want) {
		t.Fatalf("%d places, want %d: %+v", len(got), len(want), got)
	}
	for i, place := range got {
		if w := want[i]; place.Where != w.where || string(place.CABundle) != w.bundle || place.Insecure != w.insecure || (place.Err != nil) != w.err {
			t.Errorf("place %d is %+v, want %+v", i, place, w)
		}
	}
}
