package kubeconfig_test

import (
	"errors"
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// made returns a kubeconfig for a cluster whose installer uses the same names everywhere.
func made(t *testing.T, server, uid string, bundle []byte) *clientcmdapi.Config {
	t.Helper()
	config := must.Get(kubeconfig.Build(kubeconfig.Input{
		Source: &kubeconfig.Source{
			ContextName: "kubernetes-admin@kubernetes", ClusterName: "kubernetes", UserName: "kubernetes-admin",
			Cluster: &clientcmdapi.Cluster{Server: server},
		},
		Server: server, CABundle: bundle,
		Exec: kubeconfig.Exec{
			Command: "pinniped", Static: &kubeconfig.Static{TokenEnv: "T"},
			Concierge: &kubeconfig.Concierge{Endpoint: server, CABundle: bundle},
		},
	}))(t)
	if uid != "" {
		must.Do(t, kubeconfig.SetInstallation(config, uid))
	}
	return config
}

func TestMergeOfAnotherCluster(t *testing.T) {
	t.Parallel()
	one, two := ca(t, "one"), ca(t, "two")
	const a, b = "https://a.example.com", "https://b.example.com"
	both := append(append([]byte{}, one...), two...)
	for _, test := range []struct {
		name         string
		before, next *clientcmdapi.Config
		refuses      bool
	}{
		{name: "another endpoint", before: made(t, a, "", one), next: made(t, b, "", two), refuses: true},
		{name: "another endpoint with the company's CA", before: made(t, a, "", one), next: made(t, b, "", one), refuses: true},
		{name: "the same endpoint with another CA", before: made(t, a, "", one), next: made(t, a, "", two), refuses: true},
		{name: "another installation at the endpoint", before: made(t, a, "x", one), next: made(t, a, "y", one), refuses: true},
		{name: "a new endpoint of the installation", before: made(t, a, "x", one), next: made(t, b, "x", two)},
		{name: "the same endpoint with both CAs", before: made(t, a, "", one), next: made(t, a, "x", both)},
		{name: "the same again", before: made(t, a, "x", one), next: made(t, a, "x", one)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file, err := kubeconfig.Merge(nil, test.before, false)
			if err != nil {
				t.Fatal(err)
			}
			merged, err := kubeconfig.Merge(file.Content, test.next, false)
			other, refused := errors.AsType[*kubeconfig.OtherClusterError](err)
			if refused != test.refuses || !refused && err != nil {
				t.Fatalf("got %v", err)
			}
			if refused {
				if !strings.Contains(err.Error(), other.There) || !strings.Contains(err.Error(), other.New) {
					t.Errorf("it does not name both endpoints: %v", err)
				}
				return
			}
			again, err := kubeconfig.Merge(merged.Content, test.next, false)
			if err != nil || again.Changed() {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

// TestMergeKeepsWhatPeopleAdd shows that additions of users stay when an entry is updated.
func TestMergeKeepsWhatPeopleAdd(t *testing.T) {
	t.Parallel()
	one, two := ca(t, "one"), ca(t, "two")
	file := must.Get(kubeconfig.Merge(nil, made(t, "https://a.example.com", "", one), false))(t)
	text := strings.NewReplacer(
		"    server:", "    proxy-url: http://proxy\n    disable-compression: true\n    tls-server-name: inner\n"+
			"    extensions: [{name: mine, extension: {a: b}}]\n    server:",
		"      - --token-env=T\n", "      - --credential-cache=/tmp/c\n      - --token-env=T\n",
		"      provideClusterInfo: true", "      interactiveMode: Never\n      provideClusterInfo: true",
	).Replace(string(file.Content))
	both := append(append([]byte{}, one...), two...)
	merged := must.Get(kubeconfig.Merge([]byte(text), made(t, "https://a.example.com", "", both), false))(t)
	for _, kept := range []string{
		"proxy-url: http://proxy", "disable-compression: true", "tls-server-name: inner", "name: mine",
		"- --credential-cache=/tmp/c", "interactiveMode: Never",
	} {
		if !strings.Contains(string(merged.Content), kept) {
			t.Errorf("%q is gone:\n%s", kept, merged.Content)
		}
	}
}

// TestDamagedKubeconfigs shows that errors name the entry and the line, and contain no value.
func TestDamagedKubeconfigs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, content, says string }{
		{"two of one name", "clusters:\n- {name: a, cluster: {server: x}}\n- {name: a, cluster: {server: y}}\n", `line 4: cluster "a" already exists on line 3`},
		{"a number as name", "clusters:\n- {name: 1e3, cluster: {server: x}}\n", `line 3: YAML does not read the name of this cluster as text: put it in quotes, "1e3"`},
		{"base64 in several lines", "users:\n- name: u\n  user:\n    client-key-data: c2VjcmV0\n      c2VjcmV0\n", `line 5: client-key-data of user "u" is not valid base64`},
		{"a mapping in place of a list", "clusters: {secret: secret}\nusers: []\n", "clusters: not a list"},
		{"a tab", "clusters:\n- name: a\n\tcluster: secret\nusers: []\n", "line 3"},
	} {
		_, err := kubeconfig.Merge(
			[]byte("kind: Config\n"+test.content),
			made(t, "https://a.example.com", "", ca(t, "a")),
			false,
		)
		if !errors.Is(err, kubeconfig.ErrDamaged) || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "c2Vj") {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
