package kubeconfig_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// bigFile has all kinds of entries for two proxies and one other server.
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
	made, err := certs.NewCA(name, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return made.CertPEM()
}

// TestRotateSeveral rotates entries of several clusters in one file at once, and takes it back byte for byte.
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

	back, err := kubeconfig.Restore(rotation.Content, rotation.Changes)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(bigFile, string(back.Content)); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}

	// What somebody else changed since is left alone; the rest is still taken back.
	changed := bytes.ReplaceAll(rotation.Content, []byte(westData), []byte("TkVX"))
	if back, err = kubeconfig.Restore(changed, rotation.Changes); err != nil {
		t.Fatal(err)
	}
	codes := map[string]kubeconfig.SkipCode{}
	for _, entry := range back.Entries {
		codes[entry.Kind+" "+entry.Name] = entry.Code
	}
	if diff := cmp.Diff(map[string]kubeconfig.SkipCode{
		"cluster east": "", "cluster flow": "", "user east": "", "cluster west": kubeconfig.SkipChanged,
	}, codes); diff != "" {
		t.Errorf("restored after a change (-want +got):\n%s", diff)
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
	if err := os.WriteFile(path, []byte(bigFile), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := kubeconfig.Load(path)
	if err != nil {
		t.Fatal(err)
	}
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

// TestClearingUpHasAnOwner looks at the lock while leftovers are removed. It always says whose it is: that process may
// be killed as well, and the next one has to know.
func TestClearingUpHasAnOwner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	const owner, files = "run 3", 200
	var seen atomic.Int64
	stop := make(chan struct{})
	var looking sync.WaitGroup
	defer looking.Wait()
	defer close(stop)
	looking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if info, err := os.Lstat(path + ".lock"); err == nil {
				if seen.Add(1); info.Size() != int64(len(owner+"\n")) {
					t.Errorf("the lock has %d bytes, which is not its owner's name", info.Size())
					return
				}
			}
		}
	})
	for seen.Load() == 0 && !t.Failed() {
		for i := range files {
			if err := os.WriteFile(fmt.Sprintf("%s/.a.%d.tmp", filepath.Dir(path), i), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		dead := func(string) bool { return false }
		if err := kubeconfig.ClearLeftovers(t.Context(), path, owner, dead); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClearLeftovers shows that what a killed process leaves behind does not stop the next one, and that the lock of
// another program does.
func TestClearLeftovers(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "a[1]")
	write := func(name, content string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("a[1]", bigFile, 0o600)
	write(".a[1].123.tmp", "half", 0o600)
	write(".a[1].lock.5.tmp", "half", 0o600)
	write(".b.123.tmp", "of another file", 0o600)
	write("a[1].lock", "run 1\n", 0o600)
	is := func(dead string) func(string) bool { return func(owner string) bool { return owner == dead } }
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	if err := kubeconfig.ClearLeftovers(ctx, path, "run 3", is("run 2")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with the lock of another run the error is %v", err)
	}
	if err := kubeconfig.ClearLeftovers(t.Context(), path, "run 3", is("run 1")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if diff := cmp.Diff([]string{".b.123.tmp", "a[1]"}, names); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	// While a file is changed, its lock names the owner.
	to := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: "https://west.example.com"}, CABundle: ca(t, "west")}
	stop := errors.New("stop")
	_, err = kubeconfig.UpdateFile(t.Context(), path, kubeconfig.FileUpdate{
		Owner:  "run 3",
		Change: func(content []byte) (*kubeconfig.Rotation, error) { return kubeconfig.Rotate(content, to) },
		Before: func(content []byte, made *kubeconfig.Rotation) error {
			owner, err := os.ReadFile(path + ".lock")
			if string(owner) != "run 3\n" || string(content) != bigFile || len(made.Changes) != 2 {
				t.Errorf("while it is locked: %q, %v", owner, err)
			}
			return stop
		},
	})
	if content, _ := os.ReadFile(path); !errors.Is(err, stop) || string(content) != bigFile {
		t.Errorf("the error is %v, and the file:\n%s", err, content)
	}
}
