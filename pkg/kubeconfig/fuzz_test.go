package kubeconfig_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// FuzzRotate rotates unusual and malformed files. Rotate either rejects a file, or returns a kubeconfig in which only
// the CA bundle of the endpoint has changed, and which a second rotation leaves unchanged.
func FuzzRotate(f *testing.F) {
	f.Add([]byte(strings.ReplaceAll(userFile, "${OLD}", oldData)))
	f.Add(
		[]byte(
			"clusters:\n- name: a\n  cluster: {server: https://proxy.example.com}\n- name: a\n  cluster: {server: https://proxy.example.com}\n",
		),
	)
	f.Add(
		[]byte(
			`{"kind":"Config","apiVersion":"v1","clusters":[{"name":"a","cluster":{"server":"https://proxy.example.com:443","certificate-authority-data":""}}]}`,
		),
	)
	f.Add(
		[]byte(
			"clusters: &c\n- name: a\n  cluster: &d {server: https://proxy.example.com}\n- {name: b, cluster: *d}\nusers: *c\n",
		),
	)
	f.Add([]byte("---\nkind: Config\n---\nkind: Config\n"))
	f.Add([]byte("\xef\xbb\xbfkind: Config\r\nclusters:\r\n"))
	trusted := bundle(f)
	to := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com"}, CABundle: trusted}
	f.Fuzz(func(t *testing.T, content []byte) {
		rotation, err := kubeconfig.Rotate(bytes.Clone(content), to)
		if err != nil {
			return
		}
		before, err := clientcmd.Load(content)
		if err != nil {
			t.Fatalf("a file that nobody can load was rotated: %v", err)
		}
		after, err := clientcmd.Load(rotation.Content)
		if err != nil {
			t.Fatalf("loading what was written: %v\n%s", err, rotation.Content)
		}
		if !rotation.Changed() && !bytes.Equal(content, rotation.Content) {
			t.Errorf("nothing was rotated, but the content changed:\n%s", rotation.Content)
		}
		clusters, users := map[string]bool{}, map[string]bool{}
		for _, entry := range rotation.Entries {
			if entry.Outcome == kubeconfig.Rotated {
				(map[string]map[string]bool{"cluster": clusters, "user": users})[entry.Kind][entry.Name] = true
			}
		}
		for name, cluster := range after.Clusters {
			if clusters[name] {
				if !bytes.Equal(cluster.CertificateAuthorityData, trusted) {
					t.Errorf("cluster %q does not trust the bundle", name)
				}
				if old := before.Clusters[name]; old != nil {
					cluster.CertificateAuthorityData, old.CertificateAuthorityData = nil, nil
				}
			}
		}
		for name := range users {
			delete(after.AuthInfos, name)
			delete(before.AuthInfos, name)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("something else changed (-before +after):\n%s", diff)
		}
		again, err := kubeconfig.Rotate(rotation.Content, to)
		if err != nil || again.Changed() || !bytes.Equal(again.Content, rotation.Content) {
			t.Errorf("want the second rotation to change nothing, got %v, %v", again, err)
		}
	})
}

// FuzzTrusts shows that Rotate changes what Trusts returns: each entry then has the new bundle, or is reported as not
// rotated.
func FuzzTrusts(f *testing.F) {
	f.Add([]byte(strings.ReplaceAll(userFile, "${OLD}", oldData)), "10.1.2.3", false)
	for _, args := range []string{
		`[login, oidc, --concierge-endpoint, "https://proxy.example.com", --concierge-ca-bundle-data, T0xE]`,
		`[login, static, --concierge-endpoint, "https://x.example", --concierge-endpoint=https://proxy.example.com, --concierge-ca-bundle-data=T0xE, --concierge-ca-bundle-data, "%"]`,
		`[login, static, --token, --concierge-endpoint=https://x.example, --concierge-endpoint, "https://proxy.example.com", --concierge-ca-bundle-data]`,
		`[a, --, login, --concierge-endpoint=https://proxy.example.com, --, --concierge-ca-bundle-data=T0xE]`,
		`[-c, "pinniped login static --concierge-endpoint=https://proxy.example.com --concierge-ca-bundle-data=T0xE"]`,
		"[exchange-credential]\n    env: [{name: PINNIPED_K8S_API_ENDPOINT, value: 'https://proxy.example.com'}, {name: PINNIPED_CA_BUNDLE, value: x}]",
	} {
		f.Add(
			[]byte("kind: Config\nusers:\n- name: a\n  user:\n   exec:\n    command: pinniped\n    args: "+args+"\n"),
			"*.example.com",
			true,
		)
	}
	f.Add(
		[]byte(
			"clusters:\n- name: a\n  cluster: {server: https://10.1.2.3, certificate-authority-data: T0xE, certificate-authority: /x}\n",
		),
		"10.1.2.3",
		true,
	)
	f.Add(
		[]byte("clusters:\n- name: a\n  cluster: {server: https://b.example.com, tls-server-name: proxy.example.com}\n"),
		"*.example.com",
		false,
	)
	trusted := bundle(f)
	f.Fuzz(func(t *testing.T, content []byte, name string, system bool) {
		to := kubeconfig.Target{
			Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com", Names: []string{name}},
			CABundle: trusted,
		}
		if system {
			to.CABundle = nil
		}
		rotation, err := kubeconfig.Rotate(content, to)
		if err != nil {
			return
		}
		config, err := clientcmd.Load(rotation.Content)
		if err != nil {
			t.Fatalf("loading what was written: %v\n%s", err, rotation.Content)
		}
		outcomes := map[string]kubeconfig.Entry{}
		for _, entry := range rotation.Entries {
			outcomes[fmt.Sprintf("%s %q", entry.Kind, entry.Name)] = entry
		}
		places := kubeconfig.Trusts(config, to.Endpoint)
		if len(places) != len(outcomes) {
			t.Errorf("%d places, and the result names %d", len(places), len(outcomes))
		}
		for _, place := range places {
			entry := outcomes[place.Where]
			switch {
			case entry.Outcome == kubeconfig.Skipped && entry.Reason != "":
			case entry.Outcome == kubeconfig.Rotated || entry.Outcome == kubeconfig.Current:
				if place.Err != nil || place.Insecure || place.Uncertain || !bytes.Equal(place.CABundle, to.CABundle) {
					t.Errorf("%s is said to be %s, and is %+v", place.Where, entry.Outcome, place)
				}
			default:
				t.Errorf("%s was found, and the result says %+v", place.Where, entry)
			}
		}
	})
}

// FuzzSelect selects a context of a hostile kubeconfig.
func FuzzSelect(f *testing.F) {
	f.Add([]byte(strings.ReplaceAll(userFile, "${OLD}", oldData)), "c")
	f.Add([]byte("contexts: [{name: c, context: {cluster: none}}]\ncurrent-context: c\n"), "")
	f.Add([]byte("clusters: [{name: a, cluster: null}]\ncontexts: [{name: c, context: {cluster: a}}]\n"), "c")
	f.Fuzz(func(t *testing.T, content []byte, name string) {
		config, err := clientcmd.Load(content)
		if err != nil {
			return
		}
		source, err := kubeconfig.Select(config, name)
		if err != nil {
			return
		}
		if name == "" {
			name = config.CurrentContext
		}
		if config.Contexts[name] == nil || config.Clusters[config.Contexts[name].Cluster] == nil {
			t.Errorf("context %q leads nowhere, but got %+v", name, source)
		}
	})
}
