package kubeconfig_test

import (
	"bytes"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const golden = "../../testdata/kubeconfig"

// bundle returns the fixed CA bundle of the golden files.
func bundle(tb testing.TB) []byte {
	tb.Helper()
	return must.Get(os.ReadFile(filepath.Join(golden, "ca.pem")))(tb)
}

func TestBuild(t *testing.T) {
	t.Parallel()
	cache, none := "/tmp/credentials.yaml", ""
	source := func(change func(*clientcmdapi.Cluster)) *kubeconfig.Source {
		cluster := &clientcmdapi.Cluster{
			Server: "https://kube.example.com:6443", CertificateAuthorityData: bundle(t),
			LocationOfOrigin: "/home/ann/.kube/config", ProxyURL: "http://proxy.example.com:3128",
			TLSServerName: "kube.internal", DisableCompression: true,
		}
		if change != nil {
			change(cluster)
		}
		return &kubeconfig.Source{ContextName: "prod", ClusterName: "prod-cluster", UserName: "ann", Cluster: cluster}
	}
	concierge := &kubeconfig.Concierge{
		APIGroupSuffix: "pinniped.dev", AuthenticatorName: "local", AuthenticatorType: "webhook",
		Endpoint: "https://proxy.example.com", CABundle: bundle(t),
	}
	public := *concierge
	public.CABundle = nil
	exec := kubeconfig.Exec{Command: "/usr/local/bin/pinniped", InstallHint: "install it"}
	with := func(change func(*kubeconfig.Exec)) kubeconfig.Exec {
		changed := exec
		change(&changed)
		return changed
	}
	for _, test := range []struct {
		name  string
		input kubeconfig.Input
	}{
		{name: "impersonation-proxy-token", input: kubeconfig.Input{
			Source: source(nil), Suffix: "-pinniped", Server: "https://proxy.example.com", CABundle: bundle(t),
			Exec: with(func(e *kubeconfig.Exec) {
				e.Concierge, e.Static = concierge, &kubeconfig.Static{Token: "user:password"}
			}),
		}},
		{name: "impersonation-proxy-public-ca", input: kubeconfig.Input{
			Source: source(nil), Suffix: "-pinniped", Server: "https://proxy.example.com",
			Exec: with(func(e *kubeconfig.Exec) { e.Concierge, e.Static = &public, &kubeconfig.Static{TokenEnv: "TOKEN"} }),
		}},
		{name: "impersonation-proxy-of-insecure-cluster", input: kubeconfig.Input{
			Source: source(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData, c.InsecureSkipTLSVerify = nil, true }),
			Server: "https://proxy.example.com",
			Exec:   with(func(e *kubeconfig.Exec) { e.Concierge, e.Static = &public, &kubeconfig.Static{TokenEnv: "TOKEN"} }),
		}},
		{name: "same-server", input: kubeconfig.Input{
			Source: source(nil), Suffix: "-p", Server: "https://kube.example.com:6443", CABundle: bundle(t),
			Exec: with(func(e *kubeconfig.Exec) {
				e.Concierge, e.Static, e.CredentialCache = concierge, &kubeconfig.Static{TokenEnv: "TOKEN"}, &none
			}),
		}},
		{name: "no-concierge-ca-file", input: kubeconfig.Input{
			Source: source(func(c *clientcmdapi.Cluster) {
				c.CertificateAuthorityData, c.CertificateAuthority = nil, filepath.Join(golden, "ca.pem")
			}),
			Exec: with(func(e *kubeconfig.Exec) { e.Static = &kubeconfig.Static{TokenEnv: "TOKEN"} }),
		}},
		{name: "no-concierge-insecure", input: kubeconfig.Input{
			Source: source(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData, c.InsecureSkipTLSVerify = nil, true }),
			Exec:   with(func(e *kubeconfig.Exec) { e.Static = &kubeconfig.Static{TokenEnv: "TOKEN"} }),
		}},
		{name: "oidc-few-flags", input: kubeconfig.Input{
			Source: source(nil), Server: "https://proxy.example.com", CABundle: bundle(t),
			Exec: with(func(e *kubeconfig.Exec) {
				e.Concierge = concierge
				e.OIDC = &kubeconfig.OIDC{
					Issuer: "https://issuer.example.com", ClientID: "pinniped-cli", Scopes: []string{"openid", "groups"},
				}
			}),
		}},
		{name: "oidc-all-flags", input: kubeconfig.Input{
			Source: source(nil), Server: "https://proxy.example.com", CABundle: bundle(t),
			Exec: with(func(e *kubeconfig.Exec) {
				e.Concierge, e.CredentialCache = concierge, &cache
				e.OIDC = &kubeconfig.OIDC{
					Issuer: "https://issuer.example.com", ClientID: "cli", Scopes: []string{"openid"}, SkipBrowser: true, SkipListen: true,
					ListenPort: 1234, CABundle: bundle(t), SessionCache: "/tmp/sessions.yaml", DebugSessionCache: true, RequestAudience: "aud",
					UpstreamName: "corp", UpstreamType: "ldap", UpstreamFlow: "cli_password",
				}
			}),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := must.Get(kubeconfig.Build(test.input))(t)
			var got bytes.Buffer
			must.Do(t, kubeconfig.Write(&got, config))
			path := filepath.Join(golden, test.name+".golden")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil { // a file of the repository
					t.Fatal(err)
				}
			}
			want := must.Get(os.ReadFile(path))(t)
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("kubeconfig (-want +got):\n%s", diff)
			}
			loaded := must.Get(clientcmd.Load(got.Bytes()))(t)
			if _, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig(); err != nil {
				t.Errorf("client-go refuses the kubeconfig: %v", err)
			}
		})
	}
}

func TestBuildRefusesBadBundles(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("CA", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Hour))(t)
	key := must.Get(ca.KeyPEM())(t)
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("not DER")})
	for name, test := range map[string]struct {
		bundle []byte
		says   string
	}{
		"text": {bundle: []byte("hello"), says: "no PEM certificates found"},
		"a private key": {
			bundle: append(ca.CertPEM(), key...), says: `block 2 is a "PRIVATE KEY", not a certificate`,
		},
		"an unparsable certificate": {bundle: append(ca.CertPEM(), broken...), says: "block 2: "},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			_, err := kubeconfig.Build(kubeconfig.Input{
				Source: &kubeconfig.Source{Cluster: &clientcmdapi.Cluster{Server: "https://a"}},
				Server: "https://b", CABundle: test.bundle,
			})
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "MIG") {
				t.Errorf("want an error that says %q without the content, got %v", test.says, err)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	t.Parallel()
	config := clientcmdapi.NewConfig()
	config.CurrentContext = "good"
	config.Contexts["good"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.Contexts["no-cluster"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "u"}
	config.Contexts["no-user"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "x"}
	config.Contexts["no-server"] = &clientcmdapi.Context{Cluster: "empty", AuthInfo: "u"}
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://kube.example.com"}
	config.Clusters["empty"] = &clientcmdapi.Cluster{}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{}
	for _, test := range []struct {
		name, context, says string
	}{
		{name: "takes the current context"},
		{name: "takes a named context", context: "good"},
		{
			name: "lists the contexts there are", context: "bad",
			says: `no such context "bad" (its contexts: good, no-cluster, no-server, no-user)`,
		},
		{name: "needs the cluster", context: "no-cluster", says: `no such cluster "x", which context "no-cluster" refers to`},
		{name: "needs the user", context: "no-user", says: `no such user "x", which context "no-user" refers to`},
		{name: "needs a server", context: "no-server", says: `cluster "empty" has no server`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			source, err := kubeconfig.Select(config, test.context)
			if test.says != "" {
				if err == nil || err.Error() != test.says {
					t.Errorf("want %q, got %v", test.says, err)
				}
				return
			}
			if err != nil || source.ContextName != "good" || source.ClusterName != "c" || source.UserName != "u" {
				t.Errorf("want the context good, got %+v, %v", source, err)
			}
		})
	}
	if _, err := kubeconfig.Select(clientcmdapi.NewConfig(), ""); err == nil ||
		!strings.Contains(err.Error(), "no current-context") {
		t.Errorf("want an error about the current context, got %v", err)
	}
}

func TestWriteFileNamesTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "missing", "user.yaml")
	if err := kubeconfig.WriteFile(path, clientcmdapi.NewConfig()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("want an error that names the file, got %v", err)
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	base := func() *clientcmdapi.Config {
		config := madeFor(t, "dev", "https://dev.example.com")
		config.Clusters["dev"].CertificateAuthorityData = bundle(t)
		config.AuthInfos["dev"].Exec.Env = []clientcmdapi.ExecEnvVar{{Name: "SECRET", Value: "password1"}}
		return config
	}
	for _, test := range []struct {
		name   string
		change func(*clientcmdapi.Config)
		want   []string
	}{
		{name: "are none", change: func(*clientcmdapi.Config) {}},
		{name: "are none for another order of flags", change: func(c *clientcmdapi.Config) {
			args := c.AuthInfos["dev"].Exec.Args
			args[2], args[len(args)-1] = args[len(args)-1], args[2]
		}},
		{name: "are none for another way to write a bundle", change: func(c *clientcmdapi.Config) {
			c.Clusters["dev"].CertificateAuthorityData = append([]byte("\n"), c.Clusters["dev"].CertificateAuthorityData...)
		}},
		{
			name: "are shown by their names", change: func(c *clientcmdapi.Config) {
				c.Clusters["dev"].Server = "https://new.example.com"
				c.Contexts["dev"].Namespace = "x"
			},
			want: []string{
				"- cluster \"dev\" server: https://dev.example.com\n", "+ cluster \"dev\" server: https://new.example.com\n",
				"+ context \"dev\" namespace: x\n",
			},
		},
		{
			name: "show no secret", change: func(c *clientcmdapi.Config) {
				user := c.AuthInfos["dev"]
				user.Exec.Env[0].Value = "password2"
				user.Exec.Args = append(user.Exec.Args, "--token", "password3", "--token=password4")
				user.Token, user.ClientKeyData = "password5", []byte("password6")
			},
			want: []string{
				"+ user \"dev\" client-key-data: (a secret)\n", "+ user \"dev\" exec args --token: (a secret)\n",
				"- user \"dev\" exec env SECRET: (a secret)\n", "+ user \"dev\" exec env SECRET: (a secret)\n",
				"+ user \"dev\" token: (a secret)\n",
			},
		},
		{name: "are found in bundles", change: func(c *clientcmdapi.Config) {
			c.Clusters["dev"].CertificateAuthorityData = nil
		}, want: []string{"- cluster \"dev\" certificate-authority-data: \"CN="}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			old, now := base(), base()
			now.Clusters["dev"].CertificateAuthorityData = old.Clusters["dev"].CertificateAuthorityData
			test.change(now)
			got := kubeconfig.Differences(old, now)
			for i := range got {
				if i < len(test.want) && strings.HasPrefix(got[i], test.want[i]) {
					got[i] = test.want[i]
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
			if text := strings.Join(got, ""); strings.Contains(text, "password") {
				t.Errorf("a secret is shown:\n%s", text)
			}
		})
	}
}
