package kubeconfig

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// cluster publishes the proxy at localhost, with a certificate that covers more names.
type cluster struct {
	bundle     []byte
	serviceErr error
	trouble    string // while the last known good certificate is served
}

func (c cluster) CredentialIssuer(context.Context, string) (*configv1alpha1.CredentialIssuer, error) {
	issuer := &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec: configv1alpha1.CredentialIssuerSpec{
			ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{Mode: "enabled"},
		},
		Status: configv1alpha1.CredentialIssuerStatus{
			Strategies: []configv1alpha1.CredentialIssuerStrategy{
				{
					Type:   configv1alpha1.StrategyImpersonationProxy,
					Status: configv1alpha1.StrategySuccess,
					Reason: configv1alpha1.ReasonListening,
					Frontend: &configv1alpha1.CredentialIssuerFrontend{
						Type: configv1alpha1.FrontendImpersonationProxy,
						ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{
							Endpoint: "https://localhost:8443", CertificateAuthorityData: base64.StdEncoding.EncodeToString(c.bundle),
						},
					},
				},
			},
			ServingCertificate: &configv1alpha1.ServingCertificateStatus{
				DNSNames:    []string{"localhost", "*.example.com"},
				IPAddresses: []string{"127.0.0.1"},
			},
			Objects: &configv1alpha1.ObjectNames{Namespace: "ns", LoadBalancerService: "lb"},
		},
	}
	if c.trouble != "" {
		proxy := &issuer.Status.Strategies[len(issuer.Status.Strategies)-1]
		proxy.Status, proxy.Reason = configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup
		proxy.Message = c.trouble
		proxy.Findings = []configv1alpha1.StrategyFinding{{Code: configv1alpha1.CodeLastKnownGoodCertificateServed}}
	}
	return issuer, nil
}

func (c cluster) Service(_ context.Context, namespace, name string) (*corev1.Service, error) {
	if c.serviceErr != nil {
		return nil, c.serviceErr
	}
	if namespace != "ns" || name != "lb" {
		return nil, errors.New("another Service was asked for")
	}
	return &corev1.Service{
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}},
		},
	}, nil
}

func (cluster) AgentNamespace(context.Context) (string, error) { return "", errors.New("asked") }

func resolve(_ context.Context, host string) ([]netip.Addr, error) {
	switch host {
	case "localhost", "alias.example.com":
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	case "other.example.com":
		return []netip.Addr{netip.MustParseAddr("192.0.2.99")}, nil
	}
	return nil, errors.New("no such host")
}

// TestRotateFindsAll checks that every name of the proxy is found, and that skipped files are reported.
func TestRotateFindsAll(t *testing.T) {
	t.Parallel()
	ca, err := certs.NewCA("new", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(folder, "fleet", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	to := func(server string) string {
		return "kind: Config\nclusters:\n- name: a\n  cluster: {server: '" + server + "', certificate-authority-data: T0xE}\n"
	}
	for name, server := range map[string]string{
		"published": "https://localhost:8443", "covered": "https://127.0.0.1:8443", "service": "https://192.0.2.7", "elsewhere": "https://127.0.0.1:6443",
		"wildcard": "https://alias.example.com:8443", "another": "https://other.example.com:8443", "unknown": "https://gone.example.com:8443",
		".kube/home": "https://localhost:8443", "../behind/linked": "https://localhost:8443", ".cache/hidden": "https://localhost:8443",
	} {
		write(name, to(server))
	}
	write("damaged", "<<<<<<< HEAD\n"+to("https://localhost:8443")+"users: []\n")
	write("notes", "Nothing.\n")
	for link, target := range map[string]string{"link": "../behind", "twice": "published", "dangling": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(folder, "fleet", link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name     string
		endpoint string
		cluster  cluster
		want     map[string]string
		stderr   string
	}{
		{
			name: "by all names", cluster: cluster{bundle: ca.CertPEM()}, stderr: ".cache",
			want: map[string]string{
				"published": "rotated", "covered": "rotated", "service": "rotated", "wildcard": "rotated", ".kube/home": "rotated", "link/linked": "rotated",
				"unknown": "skipped", "damaged": "failed", "dangling": "skipped",
			},
		},
		{
			name: "while the last known good certificate is served, and says so", cluster: cluster{
				bundle: ca.CertPEM(), trouble: "Expired: the new one has expired",
			}, stderr: "is not in effect (Expired: the new one has expired), so this command uses",
			want: map[string]string{
				"published": "rotated", "covered": "rotated", "service": "rotated", "wildcard": "rotated", ".kube/home": "rotated", "link/linked": "rotated",
				"unknown": "skipped", "damaged": "failed", "dangling": "skipped",
			},
		},
		{
			name: "and says which it does not know", cluster: cluster{
				bundle: ca.CertPEM(), serviceErr: discovery.ErrForbidden,
			}, stderr: "kubeconfigs that use one of its addresses are not found",
			want: map[string]string{
				"published": "rotated", "covered": "rotated", "wildcard": "rotated", ".kube/home": "rotated", "link/linked": "rotated",
				"unknown": "skipped", "damaged": "failed", "dangling": "skipped",
			},
		},
		{
			name: "by one address alone when that is given", cluster: cluster{bundle: ca.CertPEM()}, endpoint: "https://gone.example.com:8443",
			want: map[string]string{
				"unknown": "rotated", "damaged": "failed", "dangling": "skipped",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			streams, _, out, errOut := genericiooptions.NewTestIOStreams()
			o := &RotateOptions{
				IOStreams: streams,
				Progress:  func() *ui.Progress { return ui.NewProgress(errOut, func(string) string { return "" }, false) },
				Resolve:   resolve,
				Connect:   func(factory.ClusterFlags, string) (Discoverer, error) { return test.cluster, nil },
				Cluster:   factory.ClusterFlags{Context: "admin"},
				Paths: []string{
					filepath.Join(folder, "fleet"),
				},
				Endpoint:       test.endpoint,
				SkipValidation: true,
				DryRun:         true,
				Output:         "text",
				LockTimeout:    time.Second,
			}
			if err := o.Run(t.Context()); err == nil ||
				!strings.Contains(err.Error(), "rotating kubeconfigs: 1 of 11 failed") {
				t.Errorf("the error is %v", err)
			}
			got := map[string]string{}
			_, table, _ := strings.Cut(out.String(), "KUBECONFIG ")
			for _, line := range strings.Split(strings.TrimSpace(table), "\n")[1:] {
				path, rest, _ := strings.Cut(line, " ")
				name, err := filepath.Rel(filepath.Join(folder, "fleet"), path)
				if err != nil {
					t.Fatal(err)
				}
				got[name] = strings.Fields(strings.ReplaceAll(rest, "would be ", ""))[0]
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s\n%s", diff, out)
			}
			if !strings.Contains(errOut.String(), test.stderr) {
				t.Errorf("stderr:\n%s", errOut)
			}
		})
	}
}

// TestRotateNamesLocalMistakesFirst checks that with an unreachable cluster local errors are reported first, and that
// the cluster is not contacted if nothing is left to do.
func TestRotateNamesLocalMistakesFirst(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, content := range map[string]string{
		"notes.txt": "Nothing to see here.\n", "good.yaml": "kind: Config\nclusters: []\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name string
		args []string
		code int
		says []string // texts in the error
	}{
		{name: "a file that is not there", args: []string{"nope.yaml"}, code: 1, says: []string{"nope.yaml", "no such file"}},
		{
			name: "several files of no use", args: []string{"nope.yaml", "notes.txt"}, code: 1,
			says: []string{"rotating kubeconfigs: 2 of 2 failed"},
		},
		{
			name: "a file of no use", args: []string{"notes.txt", "--kubeconfig-context", "x"}, code: 1,
			says: []string{"notes.txt", "not a kubeconfig"},
		},
		{
			name: "a cluster that cannot be asked", args: []string{"good.yaml", "--kubeconfig-context", "none"}, code: 1,
			says: []string{"no such cluster"},
		},
		{
			name: "a CA bundle that is not there", args: []string{"good.yaml", "--ca-bundle", filepath.Join(folder, "no.pem")},
			code: ui.ExitUsage, says: []string{"reading CA bundle", "no.pem", "no such file"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			args := make([]string, len(test.args))
			for i, arg := range test.args {
				if args[i] = arg; !strings.HasPrefix(arg, "-") && filepath.IsLocal(arg) {
					args[i] = filepath.Join(folder, arg)
				}
			}
			ran := runRotate(t, nil, args...)
			if ran.err == nil || ui.ExitCodeOf(ran.err) != test.code {
				t.Fatalf("want code %d, got %v", test.code, ran.err)
			}
			for _, part := range test.says {
				if !strings.Contains(ran.err.Error(), part) {
					t.Errorf("want %q in the error, got %v", part, ran.err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(folder, "*.lock")); len(left) > 0 {
				t.Errorf("want no locks left, got %q", left)
			}
		})
	}
}

// TestFileHints checks the hint for each cause for which a kubeconfig is not changed.
func TestFileHints(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"damaged":        {kubeconfig.ErrDamaged, "fix the file first"},
		"something else": {kubeconfig.ErrNotKubeconfig, "pass kubeconfigs"},
		"missing":        {fs.ErrNotExist, "pass kubeconfigs"},
		"a pipe":         {fmt.Errorf("%w: %w", kubeconfig.ErrNotKubeconfig, atomicfile.ErrNotRegular), "use a regular file"},
		"another cause":  {errors.New("disk full"), ""},
	} {
		got := ui.HintOf(explainFile(fmt.Errorf("reading: %w", test.err)))
		if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
