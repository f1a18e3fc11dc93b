package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// fakeSession returns numbered tokens, each valid for life, unless it fails.
type fakeSession struct {
	life time.Duration

	mu     sync.Mutex
	given  int
	failed error
	lefts  []time.Duration
}

func (f *fakeSession) Unattended() {}

// fail makes Credential return err; nil ends that.
func (f *fakeSession) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = err
}

func (f *fakeSession) Credential(_ context.Context, left time.Duration) (*login.Credential, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lefts = append(f.lefts, left)
	if f.failed != nil {
		return nil, f.failed
	}
	f.given++
	return &login.Credential{Token: fmt.Sprintf("token-%d", f.given), Expiry: time.Now().Add(f.life)}, nil
}

func newWriter(t *testing.T) *writer {
	t.Helper()
	f, err := newFiles(filepath.Join(t.TempDir(), "run"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	cluster := &clientcmdapi.Cluster{Server: "https://cluster.example.com", CertificateAuthorityData: []byte("ca")}
	raw := clientcmdapi.NewConfig()
	raw.Clusters["dev"] = cluster
	raw.AuthInfos["ann"] = &clientcmdapi.AuthInfo{
		Exec: &clientcmdapi.ExecConfig{Command: "old", Args: []string{"login", "static"}},
	}
	raw.Contexts["dev"] = &clientcmdapi.Context{Cluster: "dev", AuthInfo: "ann", Namespace: "web"}
	raw.Contexts["other"] = &clientcmdapi.Context{Cluster: "dev", AuthInfo: "ann"}
	source, err := kubeconfig.Select(raw, "dev")
	if err != nil {
		t.Fatal(err)
	}
	return &writer{files: f, cluster: &factory.Cluster{Source: source, Raw: raw}, plugin: "/bin/pinniped"}
}

func (w *writer) read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(w.files.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestKeeper checks a run of an hour with an outage of the issuer: the file always has a valid token if one can be had.
func TestKeeper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		session, w := &fakeSession{life: 10 * time.Minute}, newWriter(t)
		var mu sync.Mutex
		var said []string
		warnings := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(said)
		}
		k := &keeper{session: session, writer: w, now: time.Now, retry: 10 * time.Second, warn: func(f string, a ...any) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, fmt.Sprintf(f, a...))
		}}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		first, _ := session.Credential(ctx, 0)
		if err := w.write(first); err != nil {
			t.Fatal(err)
		}
		go k.run(ctx, first)

		time.Sleep(7 * time.Minute)
		synctest.Wait()
		if got := w.read(t, tokenName); got != "token-1" {
			t.Errorf("after 7 of 10 minutes: %s", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := w.read(t, tokenName); got != "token-2" {
			t.Errorf("after 9 of 10 minutes: %s", got)
		}
		session.fail(errors.New("the issuer is away"))
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		if got := warnings(); len(got) != 1 || !strings.Contains(got[0], "the issuer is away") {
			t.Errorf("want one warning while it is away, got %q", got)
		}
		session.fail(nil)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if got := w.read(t, tokenName); got != "token-3" || len(warnings()) != 2 {
			t.Errorf("after it came back: %s, warnings %q", got, warnings())
		}
		stop()
		synctest.Wait()
	})
}

func TestKubeconfigOfARun(t *testing.T) {
	t.Parallel()
	ca, err := certs.NewCA("CA", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(life time.Duration) *login.Credential {
		pair, err := ca.IssueClient(certs.ClientIdentity{Username: "ann"}, time.Now(), life)
		if err != nil {
			t.Fatal(err)
		}
		return &login.Credential{
			ClientCertificateData: string(pair.CertPEM), ClientKeyData: string(pair.KeyPEM), Expiry: pair.NotAfter,
		}
	}
	for _, test := range []struct {
		name       string
		credential *login.Credential
		user       func(w *writer) *clientcmdapi.AuthInfo
		renewed    bool
	}{
		{
			name: "a token is in a file", credential: &login.Credential{Token: "abc", Expiry: time.Now().Add(time.Hour)},
			user: func(w *writer) *clientcmdapi.AuthInfo {
				return &clientcmdapi.AuthInfo{TokenFile: w.files.path(tokenName)}
			},
			renewed: true,
		},
		{
			name: "a token that never expires is not renewed", credential: &login.Credential{Token: "abc"},
			user: func(w *writer) *clientcmdapi.AuthInfo {
				return &clientcmdapi.AuthInfo{TokenFile: w.files.path(tokenName)}
			},
		},
		{
			name: "a certificate that lives long is in a file", credential: certificate(20 * time.Minute),
			user: func(w *writer) *clientcmdapi.AuthInfo {
				path := w.files.path(certificateName)
				return &clientcmdapi.AuthInfo{ClientCertificate: path, ClientKey: path}
			},
			renewed: true,
		},
		{
			name: "a certificate that lives for minutes is left to this program as a plugin", credential: certificate(5 * time.Minute),
			user: func(*writer) *clientcmdapi.AuthInfo {
				return &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Command: "/bin/pinniped", Args: []string{"login", "static"}}}
			},
		},
		{
			name: "a context that logs in otherwise is as it was",
			user: func(*writer) *clientcmdapi.AuthInfo {
				return &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Command: "old", Args: []string{"login", "static"}}}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t)
			if err := w.write(test.credential); err != nil {
				t.Fatal(err)
			}
			got := w.kubeconfig(test.credential)
			if diff := cmp.Diff(test.user(w), got.AuthInfos["ann"]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(got.Contexts) != 1 || got.CurrentContext != "dev" || got.Contexts["dev"].Namespace != "web" {
				t.Errorf("contexts are %v, the current one is %q", got.Contexts, got.CurrentContext)
			}
			if test.credential != nil {
				if _, renewed := renewAt(test.credential, time.Now(), false); renewed != test.renewed {
					t.Errorf("renewed: %v, want %v", renewed, test.renewed)
				}
			}
		})
	}
}

func TestKilledRunsAreSweptUp(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "run")
	living, err := newFiles(base, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	killed := filepath.Join(base, directoryPrefix+"killed")
	young := filepath.Join(base, directoryPrefix+"young")
	old := filepath.Join(base, directoryPrefix+"old")
	foreign := filepath.Join(base, "notes")
	for _, dir := range []string{killed, young, old, foreign} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(killed, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, time.Now(), time.Now().Add(-2*abandonedAfter)); err != nil {
		t.Fatal(err)
	}
	next, err := newFiles(base, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{living.dir: true, young: true, foreign: true, killed: false, old: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: want it there: %v, got %v", filepath.Base(dir), want, err)
		}
	}
	next.remove()
	if _, err := os.Stat(next.dir); !os.IsNotExist(err) {
		t.Errorf("want the directory of a run that has ended gone, got %v", err)
	}
}

func TestKubectlsArguments(t *testing.T) {
	t.Parallel()
	o := &Options{}
	rest := o.takeClusterFlags([]string{
		"exec", "--context", "staging", "pod", "--kubeconfig=user.yaml", "-it", "--", "tool", "--context", "x",
	})
	if diff := cmp.Diff([]string{"exec", "pod", "-it", "--", "tool", "--context", "x"}, rest); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want := (factory.ClusterFlags{Kubeconfig: "user.yaml", Context: "staging"}); o.Cluster != want {
		t.Errorf("got %+v", o.Cluster)
	}
	for line, want := range map[string]bool{
		"get pods": true, "exec pod -- tool --help": true, "version": true,
		"": false, "--help": false, "get pods -h": false, "help get": false, "completion bash": false,
		"--v=3 config view": false,
	} {
		if got := needsCluster(strings.Fields(line)); got != want {
			t.Errorf("kubectl %s: got %t, want %t", line, got, want)
		}
	}
}
