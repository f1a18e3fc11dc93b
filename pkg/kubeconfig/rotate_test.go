package kubeconfig_test

import (
	stdcmp "cmp"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const oldData = "T0xEIEJVTkRMRQ=="

// userFile contains everything that is easily lost when a file is rewritten. ${OLD} stands for the bundle.
const userFile = `# of Ann — do not lose this
kind: Config
apiVersion: v1
preferences: {}
users:
  - name: ann            # logs in through the proxy
    user:
      exec:
        apiVersion: client.authentication.k8s.io/v1beta1
        command: pinniped
        args: [login, static, --concierge-endpoint=https://proxy.example.com, "--concierge-ca-bundle-data=${OLD}", --token-env=T]
  - name: elsewhere
    user:
      exec:
        apiVersion: client.authentication.k8s.io/v1beta1
        command: pinniped
        args:
        - login
        - static
        - --concierge-endpoint=https://other.example.com
        - --concierge-ca-bundle-data=T0xEIEJVTkRMRQ==
clusters:
  - name: "ünïcode"   # first
    cluster: {server: "https://Proxy.example.com:443/", certificate-authority-data: ${OLD}, tls-server-name: a}
  - cluster:
      certificate-authority-data: T0xEIEJVTkRMRQ==
      server: https://other.example.com
    name: other

  - cluster:
      server: https://proxy.example.com   # behind it
      certificate-authority-data:    '${OLD}'
    name: quoted
contexts:
  - {name: c, context: {cluster: quoted, user: ann}}
current-context: c
`

func TestRotate(t *testing.T) {
	t.Parallel()
	newData := base64.StdEncoding.EncodeToString(bundle(t))
	// cluster returns a kubeconfig with a cluster "a" that has these fields.
	cluster := func(fields ...string) string {
		return "apiVersion: v1\nkind: Config\nclusters:\n- name: a\n  cluster:\n    " + strings.Join(fields, "\n    ") + "\n"
	}
	plugin := func(args string) string {
		return "kind: Config\nusers:\n- name: a\n  user:\n    exec:\n        command: pinniped\n        args: " + args + "\n"
	}
	rotated := func(kind, name string) kubeconfig.Entry {
		return kubeconfig.Entry{Kind: kind, Name: name, Outcome: kubeconfig.Rotated}
	}
	theCluster, theUser := []kubeconfig.Entry{rotated("cluster", "a")}, []kubeconfig.Entry{rotated("user", "a")}
	skipped := func(kind string, code kubeconfig.SkipCode, reason string) []kubeconfig.Entry {
		return []kubeconfig.Entry{{Kind: kind, Name: "a", Outcome: kubeconfig.Skipped, Code: code, Reason: reason}}
	}
	windows := func(content string) string { return strings.ReplaceAll(content, "\n", "\r\n") }
	current := strings.ReplaceAll(userFile, "${OLD}", newData)
	const (
		server = "server: https://proxy.example.com"
		ca     = "certificate-authority-data: "
		at     = "--concierge-endpoint=https://proxy.example.com"
	)
	for _, test := range []struct {
		name          string
		content, want string // want is content by default
		entries       []kubeconfig.Entry
		system        bool // the target has no bundle
		err           string
		notKubeconfig bool
		damaged       bool
		names         []string // further names of the endpoint
	}{
		{
			name:    "changes the bundle and keeps every other byte",
			content: strings.ReplaceAll(userFile, "${OLD}", oldData), want: current, entries: []kubeconfig.Entry{
				rotated("cluster", "quoted"), rotated("cluster", "ünïcode"), rotated("user", "ann"),
			},
		},
		{
			name: "leaves a current file as it is", content: current, entries: []kubeconfig.Entry{
				{Kind: "cluster", Name: "quoted", Outcome: kubeconfig.Current},
				{Kind: "cluster", Name: "ünïcode", Outcome: kubeconfig.Current},
				{Kind: "user", Name: "ann", Outcome: kubeconfig.Current},
			},
		},
		{
			name:    "leaves a file for other clusters as it is",
			content: cluster("server: https://proxy.example.com:8443", ca+"T0xE"),
		},
		{
			name: "keeps Windows line ends", content: windows(cluster(server, ca+"T0xE")),
			want: windows(cluster(server, ca+newData)), entries: theCluster,
		},
		{
			name:    "adds a bundle where the system roots were used",
			content: cluster(server+" # x", "proxy-url: http://p"),
			want:    cluster(ca+newData, server+" # x", "proxy-url: http://p"), entries: theCluster,
		},
		{
			name: "adds one with Windows line ends", content: windows(cluster(server)),
			want: windows(cluster(ca+newData, server)), entries: theCluster,
		},
		{
			name: "fills in an empty one", content: cluster(ca+`""`, server),
			want: cluster(ca+`"`+newData+`"`, server), entries: theCluster,
		},
		{
			name: "fills in a missing value", content: cluster(strings.TrimSpace(ca), server),
			want: cluster(ca+newData, server), entries: theCluster,
		},
		{
			name: "fills in null", content: cluster(ca+"null", server),
			want: cluster(ca+" "+newData, server), entries: theCluster,
		},
		{
			name: "empties it for the system roots", system: true, content: cluster(server, ca+"T0xE"),
			want: cluster(server, ca+`""`), entries: theCluster,
		},
		{
			name:    "edits JSON",
			content: `{"kind":"Config","clusters":[{"name":"a","cluster":{"server":"https://proxy.example.com","certificate-authority-data":"T0xE"}}]}`,
			want:    `{"kind":"Config","clusters":[{"name":"a","cluster":{"server":"https://proxy.example.com","certificate-authority-data":"` + newData + `"}}]}`, entries: theCluster,
		},
		{
			name:    "adds to JSON",
			content: `{"kind":"Config","clusters":[{"name":"a","cluster":{"server":"https://proxy.example.com"}}]}`,
			want:    `{"kind":"Config","clusters":[{"name":"a","cluster":{"certificate-authority-data": "` + newData + `", "server":"https://proxy.example.com"}}]}`, entries: theCluster,
		},
		{
			name: "leaves a cluster that is not verified alone", content: cluster(server, "insecure-skip-tls-verify: true"),
			entries: skipped("cluster", kubeconfig.SkipInsecure, "it has insecure-skip-tls-verify"),
		},
		{
			name: "leaves a cluster with a CA file alone", content: cluster(server, "certificate-authority: /etc/ca.pem"),
			entries: skipped("cluster", kubeconfig.SkipCAFile,
				`it reads its CA bundle from file "/etc/ca.pem", which other kubeconfigs may share`),
		},
		{
			name: "refuses what it cannot edit: a value on several lines", err: "spread over several lines",
			content: cluster(server, ca+"|", "  T0xE", "  T0xE"),
		},
		{
			name: "refuses what it cannot edit: an anchor that others use", err: "has a YAML anchor",
			content: "kind: Config\nclusters:\n- name: a\n  cluster: {" + server + ", " + ca + "&ca T0xE}\n" +
				"- name: b\n  cluster: {server: https://other.example.com, " + ca + "*ca}\n",
		},
		{
			name: "refuses what it cannot edit: an alias", err: "is a YAML alias",
			content: "kind: Config\nclusters:\n- name: b\n  cluster: {server: https://other.example.com, " + ca +
				"&ca T0xE}\n- name: a\n  cluster: {" + server + ", " + ca + "*ca}\n",
		},
		{
			name:    "changes two-argument flags",
			content: plugin(`[login, oidc, --concierge-endpoint, "https://proxy.example.com", --concierge-ca-bundle-data, T0xE, --skip-browser]`),
			want:    plugin(`[login, oidc, --concierge-endpoint, "https://proxy.example.com", --concierge-ca-bundle-data, ` + newData + `, --skip-browser]`), entries: theUser,
		},
		{
			name:    "changes the last of several",
			content: plugin(`[login, static, ` + at + `, --concierge-ca-bundle-data=T0xE, --concierge-ca-bundle-data, T0xF]`),
			want:    plugin(`[login, static, ` + at + `, --concierge-ca-bundle-data=T0xE, --concierge-ca-bundle-data, ` + newData + `]`), entries: theUser,
		},
		{
			name:    "leaves alone what goes elsewhere in the end",
			content: plugin(`[login, static, ` + at + `, --concierge-endpoint, "https://x.example", --concierge-ca-bundle-data=T0xE]`),
		},
		{
			name:    "takes a value that looks like a flag for a value",
			content: plugin(`[login, static, --concierge-endpoint, "https://proxy.example.com", --token, --concierge-ca-bundle-data=T0xE]`),
			entries: skipped("user", kubeconfig.SkipPlugin,
				"its credential plugin has no --concierge-ca-bundle-data; recreate the kubeconfig"),
		},
		{
			name:    "changes plugins that embed Pinniped's, behind other programs",
			content: plugin(`[exec, prod, --, pinniped-auth, login, ` + at + `, --concierge-ca-bundle-data=T0xE]`),
			want:    plugin(`[exec, prod, --, pinniped-auth, login, ` + at + `, --concierge-ca-bundle-data=` + newData + `]`), entries: theUser,
		},
		{
			name:    "says that it cannot change a shell's command",
			content: plugin(`[-c, "exec pinniped login static --concierge-endpoint='https://proxy.example.com' --token x"]`),
			entries: skipped("user", kubeconfig.SkipPlugin,
				"the flags of its credential plugin are in one argument of another program; change that by hand"),
		},
		{
			name: "says that it cannot change a very old plugin",
			content: plugin("[exchange-credential]\n        env: [{name: PINNIPED_K8S_API_ENDPOINT, value: " +
				"'https://proxy.example.com'}, {name: PINNIPED_CA_BUNDLE, value: x}]"),
			entries: skipped("user", kubeconfig.SkipPlugin, "its credential plugin is from a very old Pinniped "+
				"and gets the CA bundle from PINNIPED_CA_BUNDLE; recreate the kubeconfig"),
		},
		{
			name: "refuses what it cannot edit: arguments that others use", err: "they are a YAML alias",
			content: "kind: Config\nusers:\n- name: b\n  user: {exec: {command: x, args: &a [login, static, '" + at +
				"', --concierge-ca-bundle-data=T0xE]}}\n- name: c\n  user: {exec: {command: x, args: *a}}\n",
		},
		{
			name: "goes by the other names of the endpoint", names: []string{"10.1.2.3", "other.example.com:8443"},
			content: cluster("server: https://10.1.2.3", ca+"T0xE\n- name: b\n  cluster: {server: "+
				"'https://OTHER.example.com.:8443'}\n- name: c\n  cluster: {server: 'https://other.example.com'}"),
			want: cluster("server: https://10.1.2.3", ca+newData+"\n- name: b\n  cluster: {\"certificate-authority-data\": \""+
				newData+"\", server: 'https://OTHER.example.com.:8443'}\n- name: c\n  cluster: {server: "+
				"'https://other.example.com'}"),
			entries: []kubeconfig.Entry{rotated("cluster", "a"), rotated("cluster", "b")},
		},
		{
			name:    "goes by the name that is expected in the certificate",
			content: cluster("server: https://127.0.0.1:9443", "tls-server-name: proxy.example.com", ca+"T0xE"),
			want:    cluster("server: https://127.0.0.1:9443", "tls-server-name: proxy.example.com", ca+newData), entries: theCluster,
		},
		{
			name: "does not change what a wildcard alone covers", names: []string{"*.example.com"},
			content: cluster("server: https://b.example.com", ca+"T0xE"),
			entries: skipped("cluster", kubeconfig.SkipUncertain, `only a wildcard of the certificate covers "b.example.com", `+
				`so this host may be another endpoint; if it is the same endpoint, pass its URL with --endpoint`),
		},
		{
			name: "does not give way to a CA file", system: true,
			content: cluster(server, ca+"T0xE", "certificate-authority: /etc/ca.pem"),
			entries: skipped("cluster", kubeconfig.SkipCAFile,
				`without its own CA bundle, it would use the CA bundle in file "/etc/ca.pem"`),
		},
		{
			name: "tells a kubeconfig with merge markers from other files", damaged: true, err: "looks like a kubeconfig",
			content: "<<<<<<< HEAD\n" + userFile + "=======\n>>>>>>> x\n",
		},
		{
			name: "tells one in JSON, too", damaged: true, err: "looks like a kubeconfig",
			content: `{"kind":"Config","clusters":[],"users":[}`,
		},
		{
			name: "takes a text about kubeconfigs for a text", notKubeconfig: true, err: "not a kubeconfig",
			content: "# How to\n```\nclusters: []\nusers: []\n```\n",
		},
		{name: "takes a template for a template", notKubeconfig: true, err: "not a kubeconfig", content: "{{- range " +
			".Clusters }}\nclusters: []\nusers: []\n"},
		{name: "takes a script for a script", notKubeconfig: true, err: "not a kubeconfig", content: "#!/bin/sh\ncat " +
			"<<EOF\nclusters: []\nusers: [\n"},
		{name: "takes notes for notes", notKubeconfig: true, err: "not a kubeconfig", content: "users: [\n"},
		{name: "refuses what is no YAML", content: "\t{", notKubeconfig: true, err: "not a kubeconfig"},
		{name: "refuses another kind", content: "kind: Pod\nclusters: []", notKubeconfig: true, err: "not a kubeconfig"},
		{name: "refuses a file without a kind", content: "a: b", notKubeconfig: true, err: "not a kubeconfig"},
		{name: "refuses an empty file", notKubeconfig: true, err: "not a kubeconfig"},
		{name: "refuses two clusters with one name", damaged: true, err: "cluster \"a\" already exists", content: cluster(server, "\n- name: a\n  cluster: {}")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			to := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com"}, CABundle: bundle(t)}
			to.Names = test.names
			if test.system {
				to.CABundle = nil
			}
			got, err := kubeconfig.Rotate([]byte(test.content), to)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) ||
					errors.Is(err, kubeconfig.ErrNotKubeconfig) != test.notKubeconfig ||
					errors.Is(err, kubeconfig.ErrDamaged) != test.damaged {
					t.Fatalf("want an error with %q, got %v", test.err, err)
				}
				return
			}
			must.Do(t, err)
			if diff := cmp.Diff(stdcmp.Or(test.want, test.content), string(got.Content)); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.entries, got.Entries); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRotateRefusesABadBundle(t *testing.T) {
	t.Parallel()
	key := must.Get(must.Get(certs.NewCA("CA", time.Now(), time.Hour))(t).KeyPEM())(t)
	to := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com"}, CABundle: key}
	_, err := kubeconfig.Rotate([]byte(userFile), to)
	if err == nil || !strings.Contains(err.Error(), "not a certificate") {
		t.Errorf("a private key as CA bundle: %v", err)
	}
}

func TestRotateFile(t *testing.T) {
	t.Parallel()
	to := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com"}, CABundle: bundle(t)}
	before := strings.ReplaceAll(userFile, "${OLD}", oldData)
	after := strings.ReplaceAll(userFile, "${OLD}", base64.StdEncoding.EncodeToString(bundle(t)))
	for _, test := range []struct {
		name             string
		locked, unlocked bool // by kubectl, for a while
		dryRun           bool
		want             string
		err              string
	}{
		{name: "replaces the file", want: after},
		{name: "changes nothing in a dry run", dryRun: true, want: before},
		{name: "needs no lock in a dry run", dryRun: true, want: before, locked: true},
		{
			name: "leaves a file alone that kubectl is changing", want: before, locked: true,
			err: "if no such program is running, remove the lock file",
		},
		{name: "waits until kubectl is done", want: after, locked: true, unlocked: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "config")
			write(t, path, before)
			must.Do(t, os.Chmod(path, 0o640))
			if test.locked {
				write(t, path+".lock", "")
			}
			if test.unlocked {
				time.AfterFunc(50*time.Millisecond, func() { _ = os.Remove(path + ".lock") })
			}
			timeout := 10 * time.Second
			if test.err != "" {
				timeout = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			rotation, err := kubeconfig.RotateFile(ctx, path, to, test.dryRun)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("want an error with %q, got %v", test.err, err)
				}
			} else if err != nil || !rotation.Changed() {
				t.Errorf("got %+v, %v", rotation, err)
			}
			content, err := os.ReadFile(path)
			if err != nil || string(content) != test.want {
				t.Errorf("the file is (-want +got), %v:\n%s", err, cmp.Diff(test.want, string(content)))
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
				t.Errorf("its mode is %v, %v", info.Mode(), err)
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(content), 0o600))
}

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
	return must.Get(certs.NewCA(name, time.Now(), time.Hour))(t).CertPEM()
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
	rotation := must.Get(kubeconfig.Rotate([]byte(bigFile), targets...))(t)
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

	users := func(trust kubeconfig.Trust) bool { return trust.Kind == "user" }
	only, err := kubeconfig.RotateOnly([]byte(bigFile), users, targets...)
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

// TestEncodings shows that files from PowerShell are changed like others and keep their encoding.
func TestEncodings(t *testing.T) {
	t.Parallel()
	made := clientcmdapi.NewConfig()
	made.Clusters["made"] = &clientcmdapi.Cluster{Server: "https://made.example.com"}
	crlf := func(data string) []byte {
		return []byte(strings.ReplaceAll(strings.ReplaceAll(userFile, "${OLD}", data), "\n", "\r\n"))
	}
	json := `{"kind":"Config","clusters":[{"name":"ü","cluster":{"server":"https://proxy.example.com"}}]}`
	newBundle := bundle(t)
	to := kubeconfig.Target{
		Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com"}, CABundle: newBundle,
	}
	for name, as := range map[string]encoding.Encoding{
		"UTF-16, little endian": unicode.UTF16(unicode.LittleEndian, unicode.UseBOM),
		"UTF-16, big endian":    unicode.UTF16(unicode.BigEndian, unicode.UseBOM),
		"UTF-8 with a mark":     unicode.UTF8BOM,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			encode := func(text []byte) []byte {
				return must.Get(as.NewEncoder().Bytes(text))(t)
			}
			before := encode(crlf(oldData))
			rotation, err := kubeconfig.Rotate(before, to)
			if err != nil {
				t.Fatal(err)
			}
			if want := encode(crlf(base64.StdEncoding.EncodeToString(newBundle))); !cmp.Equal(rotation.Content, want) {
				t.Errorf("got %q\nwant %q", rotation.Content, want)
			}
			rotation, err = kubeconfig.Rotate(encode([]byte(json)), to)
			if err != nil || !rotation.Changed() {
				t.Errorf("JSON: %v", err)
			}
			path := filepath.Join(t.TempDir(), "config")
			must.Do(t, os.WriteFile(path, before, 0o600))
			must.Get(kubeconfig.MergeFile(t.Context(), path, made, false))(t)
			config, err := kubeconfig.Load(path)
			if err != nil || config.Clusters["made"] == nil || config.Clusters["ünïcode"] == nil {
				t.Errorf("merged: %v, %v", err, config)
			}
		})
	}
	_, err := kubeconfig.Rotate([]byte("\xff\xfek\x00\x00\xd8"), to) // half a character
	if !errors.Is(err, kubeconfig.ErrDamaged) {
		t.Errorf("a file with half a character: %v", err)
	}
}
