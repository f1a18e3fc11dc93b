package kubeconfig

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/resulttest"
)

// handing is a proxy that serves a certificate of the old CA and publishes both CAs.
type handing struct {
	*httptest.Server
	old, both []byte
}

func newHanding(t *testing.T, show bool) *handing {
	t.Helper()
	old, err := certs.NewCA("old", time.Now().Add(-time.Hour), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	next, err := certs.NewCA("new", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := old.IssueServing(certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	h := &handing{old: old.CertPEM(), both: append(old.CertPEM(), next.CertPEM()...)}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !show || req.URL.Path != trustbundle.Path {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		document, _ := trustbundle.Encode(h.both)
		_, _ = w.Write(document)
	}))
	h.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

// file writes a kubeconfig with a login through the proxy.
func (h *handing) file(t *testing.T, path string) {
	t.Helper()
	data := base64.StdEncoding.EncodeToString(h.old)
	content := fmt.Sprintf(
		"kind: Config\nclusters:\n- name: proxy\n  cluster: {server: %q, certificate-authority-data: %q}\n"+
			"users:\n- name: ann\n  user:\n    exec:\n      apiVersion: client.authentication.k8s.io/v1beta1\n      command: pinniped\n"+
			"      args: [login, static, --concierge-endpoint=%s, --concierge-ca-bundle-data=%s]\n",
		h.URL,
		data,
		h.URL,
		data,
	)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// added returns the fingerprint of the CA that a kubeconfig gets.
func (h *handing) added() string { return result.BundleOf(h.both)[1].SHA256 }

// admin is a client of an administrator.
type admin struct{ of *handing }

func (a admin) CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error) {
	issuer, err := cluster{bundle: a.of.both}.CredentialIssuer(ctx, name)
	if err != nil {
		return nil, err
	}
	issuer.Status.Strategies[0].Frontend.ImpersonationProxyInfo.Endpoint = a.of.URL
	return issuer, nil
}

func (a admin) Service(context.Context, string, string) (*corev1.Service, error) {
	return &corev1.Service{}, nil
}
func (a admin) AgentNamespace(context.Context) (string, error) { return "ns", nil }

type fleetRun struct {
	out, errOut string
	err         error
}

func runRotate(t *testing.T, admins map[string]*handing, args ...string) fleetRun {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	f := &factory.Factory{
		IOStreams: streams, Getenv: func(string) string { return "" }, Now: time.Now,
		HomeDir: func() (string, error) { return t.TempDir(), nil },
	}
	o := newRotateOptions(f)
	o.Usual = func(string) Discoverer {
		if of := admins[""]; of != nil {
			return admin{of}
		}
		return nil
	}
	o.Connect = func(flags factory.ClusterFlags, _ string) (Discoverer, error) {
		if of := admins[flags.Context]; of != nil {
			return admin{of}, nil
		}
		return nil, errors.New("no such cluster")
	}
	cmd := o.command(f)
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return fleetRun{out.String(), errOut.String(), err}
}

// TestFleet rotates kubeconfigs of three clusters: one publishes its trust bundle, one is read by an administrator, and
// one does neither. It checks the text and the JSON output.
func TestFleet(t *testing.T) {
	t.Parallel()
	open, pinniped, closed := newHanding(t, true), newHanding(t, false), newHanding(t, false)
	folder := t.TempDir()
	for name, of := range map[string]*handing{"ann": open, "ben": pinniped, "eve": closed} {
		of.file(t, filepath.Join(folder, name))
	}
	admins := filepath.Join(t.TempDir(), "admins")
	if err := os.WriteFile(admins, []byte("kind: Config\ncontexts:\n- {name: p, context: {cluster: c, user: u}}\n"+
		"clusters:\n- {name: c, cluster: {server: 'https://127.0.0.1:1'}}\nusers:\n- {name: u, user: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := map[string]string{}
	for _, name := range []string{"ann", "ben", "eve"} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(content)
	}
	ran := runRotate(t, map[string]*handing{"p": pinniped}, folder, "--admin-kubeconfig", admins, "-o", "json")
	if ui.ExitCodeOf(ran.err) != 1 || !strings.Contains(ran.err.Error(), "1 of 3 did not get") ||
		!strings.Contains(ui.HintOf(ran.err), "--admin-kubeconfig") {
		t.Errorf("the error is %v (%s)", ran.err, ui.HintOf(ran.err))
	}
	var shown result.KubeconfigRotation
	if err := json.Unmarshal([]byte(ran.out), &shown); err != nil {
		t.Fatal(err)
	}
	resulttest.Valid(t, []byte(ran.out))
	s := shown.Summary
	if shown.Kind != "KubeconfigRotation" || s.Clusters != 3 || s.ClustersFailed != 1 || s.Rotated != 2 || s.Skipped != 1 {
		t.Errorf("%+v", shown)
	}
	sources := map[string]string{}
	for _, one := range shown.Clusters {
		sources[one.Server] = string(one.Source) + " " + string(one.Outcome)
	}
	if sources[open.URL] != "endpoint asked" || sources[pinniped.URL] != "admin asked" ||
		sources[closed.URL] != "endpoint failed" {
		t.Errorf("clusters: %v", sources)
	}
	for _, one := range shown.Kubeconfigs {
		for _, entry := range one.Entries {
			if entry.Server != map[string]*handing{"ann": open, "ben": pinniped, "eve": closed}[filepath.Base(one.Where)].URL {
				t.Errorf("%s: %s %q leads to %q", one.Where, entry.Kind, entry.Name, entry.Server)
			}
		}
	}
	if !strings.Contains(ran.errOut, "Kubeconfigs: 2 rotated, 1 skipped; clusters: 3, 1 failed") {
		t.Errorf("stderr:\n%s", ran.errOut)
	}
	for name, of := range map[string]*handing{"ann": open, "ben": pinniped} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		want := strings.ReplaceAll(
			before[name],
			base64.StdEncoding.EncodeToString(of.old),
			base64.StdEncoding.EncodeToString(of.both),
		)
		if err != nil || string(content) != want {
			t.Errorf("%s: %v\n%s", name, err, content)
		}
	}
	open.file(t, filepath.Join(folder, "ann"))
	ran = runRotate(t, nil, filepath.Join(folder, "ann"), "--dry-run")
	if ran.err != nil || !strings.Contains(ran.out, `would be rotated   cluster "proxy", user "ann"`) {
		t.Errorf("dry run: %v\n%s", ran.err, ran.out)
	}
	if text := `"CN=new"                 ` + open.added() + "   1\n"; !strings.Contains(ran.out, text) {
		t.Errorf("the table does not say %q\n%s", text, ran.out)
	}
}

// TestExpectedCAs checks the fingerprints of the flag, and of the environment variable for unattended runs.
func TestExpectedCAs(t *testing.T) {
	t.Parallel()
	of := newHanding(t, true)
	file := filepath.Join(t.TempDir(), "ann")
	of.file(t, file)
	var both []string
	for _, one := range result.BundleOf(of.both) {
		both = append(both, one.SHA256)
	}
	for _, expected := range []string{"none", of.added(), strings.Join(both, ",")} {
		ran := runRotate(t, nil, file, "--dry-run", "--expect-ca", expected)
		if good := strings.Contains(expected, ","); good != (ran.err == nil) ||
			!good && !strings.Contains(ran.out, "--expect-ca") {
			t.Errorf("with %s: %v\n%s", expected, ran.err, ran.out)
		}
		ran = runRotate(
			t,
			map[string]*handing{"x": of},
			file,
			"--kubeconfig-context",
			"x",
			"--dry-run",
			"--expect-ca",
			expected,
		)
		if good := strings.Contains(expected, ","); good != (ran.err == nil) ||
			!good && ui.ExitCodeOf(ran.err) != ui.ExitRefused {
			t.Errorf("as an administrator, with %s: %v\n%s", expected, ran.err, ran.out)
		}
	}
}

func TestRotateUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"x", "--admin-kubeconfig", "y", "--endpoint", "https://x"},
		{"x", "--admin-kubeconfig", "y", "--kubeconfig", "z"},
		{"x", "--expect-ca", "abc"},
		{"x", "--expect-ca", ""},
		{"x", "--contexts", "["},
		{"x", "--selector", "a=b"},
		{"x", "--endpoint", "http://x"},
		{"--from", "vault"},
		{"--from", "capi:"},
		{"--from", "file:x"},
		{"x", "-o", "junit"},
		{},
	} {
		if ran := runRotate(t, nil, args...); ui.ExitCodeOf(ran.err) != ui.ExitUsage {
			t.Errorf("%v: %v", args, ran.err)
		}
	}
}

// TestRotateFlags limits the number of flags.
func TestRotateFlags(t *testing.T) {
	t.Parallel()
	count := 1 // --help
	newRotateOptions(&factory.Factory{}).command(&factory.Factory{}).Flags().VisitAll(func(*pflag.Flag) { count++ })
	if count > 16 {
		t.Errorf("it has %d flags", count)
	}
}
