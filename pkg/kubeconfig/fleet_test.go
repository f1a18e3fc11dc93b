package kubeconfig_test

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// bigFile has all types of entries for two proxies and one other server.
const bigFile = `# all clusters
kind: Config
apiVersion: v1
clusters:
- name: east
  cluster:
    # without a bundle
    server: https://east.example.com
- {name: flow, cluster: {server: "https://east.example.com:443", proxy-url: "http://p"}}
- name: west
  cluster: {certificate-authority-data: 'T0xE', server: https://west.example.com}
- name: other
  cluster: {certificate-authority-data: T0xE, server: https://other.example.com}
- name: tunnel
  cluster: {certificate-authority-data: T0xE, server: https://localhost:8443, tls-server-name: west.example.com}
users:
- name: east
  user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: p, args: [login, static, --concierge-endpoint=https://east.example.com, --concierge-ca-bundle-data=T0xE]}}
- name: token
  user: {token: x}
contexts:
- {name: e, context: {cluster: east, user: east}}
`

func ca(t *testing.T, name string) []byte {
	t.Helper()
	made := must.Get(certs.NewCA(name, time.Now(), time.Hour))(t)
	return made.CertPEM()
}

// TestRotateSeveral rotates entries of several clusters in one file at once.
func TestRotateSeveral(t *testing.T) {
	t.Parallel()
	east, west := ca(t, "east"), ca(t, "west")
	refuse := errors.New("not this one")
	targets := []kubeconfig.Target{
		{Endpoint: kubeconfig.Endpoint{URL: "https://east.example.com"}, CABundle: east},
		{
			Endpoint: kubeconfig.Endpoint{URL: "https://west.example.com"}, CABundle: west,
			Accepts: func(trust kubeconfig.Trust) error {
				if trust.Name == "tunnel" {
					return refuse
				}
				if string(trust.CABundle) != "OLD" || trust.Server != "https://west.example.com" ||
					trust.Host != "west.example.com" {
					t.Errorf("asked about %+v", trust)
				}
				return nil
			},
		},
	}
	rotation, err := kubeconfig.Rotate([]byte(bigFile), targets...)
	if err != nil {
		t.Fatal(err)
	}
	eastData, westData := base64.StdEncoding.EncodeToString(east), base64.StdEncoding.EncodeToString(west)
	want := strings.NewReplacer(
		"    server: https://east", "    certificate-authority-data: "+eastData+"\n    server: https://east",
		`{server: "https://east`, `{"certificate-authority-data": "`+eastData+`", server: "https://east`,
		"data: 'T0xE', server: https://west", "data: '"+westData+"', server: https://west",
		"bundle-data=T0xE", "bundle-data="+eastData,
	).Replace(bigFile)
	if diff := cmp.Diff(want, string(rotation.Content)); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
	var got []string
	for _, entry := range rotation.Entries {
		got = append(got, entry.Kind+" "+entry.Name+" "+string(entry.Outcome)+" "+string(entry.Code)+entry.Reason)
	}
	if diff := cmp.Diff([]string{
		"cluster east rotated ", "cluster flow rotated ", "cluster tunnel skipped NotAcceptednot this one",
		"cluster west rotated ", "user east rotated ",
	}, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}

	only, err := kubeconfig.RotateOnly(
		[]byte(bigFile),
		func(trust kubeconfig.Trust) bool { return trust.Kind == "user" },
		targets...)
	if err != nil || len(only.Changes) != 1 || only.Changes[0].Kind != "user" {
		t.Errorf("a part of it: %+v, %v", only, err)
	}
}

// TestAllTrusts lists every server of a kubeconfig.
func TestAllTrusts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	must.Do(t, os.WriteFile(path, []byte(bigFile), 0o600))
	config := must.Get(kubeconfig.Load(path))(t)
	var got []string
	for _, trust := range kubeconfig.AllTrusts(config) {
		got = append(got, trust.Where+" "+trust.Server+" "+trust.Host+" "+trust.ProxyURL)
	}
	if diff := cmp.Diff([]string{
		`cluster "east" https://east.example.com east.example.com `,
		`cluster "flow" https://east.example.com:443 east.example.com http://p`,
		`cluster "other" https://other.example.com other.example.com `,
		`cluster "tunnel" https://localhost:8443 west.example.com `,
		`cluster "west" https://west.example.com west.example.com `,
		`user "east" https://east.example.com east.example.com `,
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
