package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// peersFile is the ConfigMap content of a Pinniped installation.
const peersFile = `
discovery: {url: null}
api:
  servingCertificate: {durationSeconds: 2592000, renewBeforeSeconds: 2160000}
apiGroupSuffix: pinniped.dev
aggregatedAPIServerPort: 10250
impersonationProxyServerPort: 8444
names:
  servingCertificateSecret: x-api-tls-serving-certificate
  credentialIssuer: x-config
  apiService: x-api
  impersonationLoadBalancerService: x-lb
  impersonationClusterIPService: x-ip
  impersonationTLSCertificateSecret: x-tls
  impersonationCACertificateSecret: x-ca
  impersonationSignerSecret: x-signer
  agentServiceAccount: x-kube-cert-agent
  impersonationProxyServiceAccount: x-impersonation-proxy
  impersonationProxyLegacySecret: x-impersonation-proxy
labels: {app: x, example.com/Team: Blue}
kubeCertAgent: {namePrefix: p-, image: i, imagePullSecrets: [s]}
tls: {onedottwo: {allowedCiphers: []}}
audit: {logUsernamesAndGroups: enabled}
`

func load(t *testing.T, content string) (*Config, error) {
	t.Helper()
	path := ""
	if content != "" {
		path = filepath.Join(t.TempDir(), "pinniped.yaml")
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return LoadConfig(path)
}

func TestLoadConfig(t *testing.T) {
	t.Parallel()

	config, err := load(t, peersFile)
	if err != nil {
		t.Fatalf("a peer's file: %v", err)
	}
	if config.Names.CredentialIssuer != "x-config" ||
		config.Names.ImpersonationProxyServiceAccount != "x-impersonation-proxy" {
		t.Errorf("names are %+v", config.Names)
	}
	if diff := cmp.Diff(map[string]string{"app": "x", "example.com/Team": "Blue"}, config.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if config.Audit.LogUsernamesAndGroups != "enabled" || config.AppLabel() != "x" {
		t.Errorf("audit %+v, app label %q", config.Audit, config.AppLabel())
	}

	config, err = load(t, "")
	if err != nil {
		t.Fatalf("no file: %v", err)
	}
	if config.AggregatedAPIServerPort != 10250 || config.Names.CredentialIssuer != "pinniped-concierge-config" ||
		config.AppLabel() != DefaultAppName ||
		config.Metrics != (MetricsConfig{Address: "127.0.0.1:8446", Pprof: "disabled"}) {
		t.Errorf("defaults are %+v", config)
	}
}

func TestNamesFollowAppName(t *testing.T) {
	t.Parallel()
	config := must.Get(load(t, "appName: own\nnames: {apiService: other}\n"))(t)
	names := config.Names
	if names.CredentialIssuer != "own-config" || names.APIService != "other" ||
		names.ImpersonationSignerSecret != "own-impersonation-proxy-signer-ca-certificate" ||
		config.AppLabel() != "own" {
		t.Errorf("the names are %+v, app label %q", names, config.AppLabel())
	}
}

func TestLoadConfigRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, file, want string }{
		{
			"unknown keys", "log: {level: info}\nimpersonationProxyPort: 1\nnames:\n  apiService: x\n  secret: y\n",
			`line 2: unknown field "impersonationProxyPort"; line 5: unknown field "names.secret"`,
		},
		{"keys in another case", "appname: x\n", `line 1: unknown field "appname"`},
		{"keys that stand there twice", "log: {}\nlog: {}\n", "line 2: mapping key \"log\" already defined at line 1"},
		{
			"unknown fields of the spec", "credentialIssuerSpec:\n  impersonationProxy:\n    mod: auto\n",
			`line 3: unknown field "credentialIssuerSpec.impersonationProxy.mod"`,
		},
		{"ports out of range", "impersonationProxyServerPort: 443\n", "must be within range 1024 to 65535"},
		{"ports that are no number", "log: {}\naggregatedAPIServerPort: many\n", "line 2: aggregatedAPIServerPort is a string"},
		{"suffixes that are no domain", "apiGroupSuffix: nodot\n", "validate apiGroupSuffix"},
		{"unknown log levels", "log: {level: loud}\n", "log.level"},
		{"unknown audit words", "audit: {logUsernamesAndGroups: yep}\n", "invalid logUsernamesAndGroups format"},
		{"an audit log without a policy", "audit: {logPath: '-'}\n", "audit.policyFile and audit.logPath"},
		{"an audit policy without a log", "audit: {policyFile: /p}\n", "audit.policyFile and audit.logPath"},
		{"an endpoint that is neither on nor off", "trustBundleEndpoint: maybe\n", "trustBundleEndpoint"},
		{"certificates that are over at once", "credentialLifetime: 59s\n", "credentialLifetime"},
		{"certificates that live for days", "credentialLifetime: 25h\n", "credentialLifetime"},
		{"metrics addresses without a port", "metrics: {address: localhost}\n", "metrics.address"},
		{"metrics addresses with a port out of range", "metrics: {address: ':70000'}\n", "metrics.address"},
		{"unknown words about profiles", "metrics: {pprof: everywhere}\n", "use disabled, local or anyone"},
		{"lifetimes that are none", "accessReviews: {allowTTL: forever}\n", "accessReviews.allowTTL is \"forever\""},
		{"lifetimes that are too long", "accessReviews: {allowTTL: 11m}\n", "write a duration from 1ms to 10m"},
		{"lifetimes of nothing", "accessReviews: {allowTTL: 0s}\n", "write a duration from 1ms to 10m"},
		{"labels that Kubernetes refuses", "labels: {'a b': c}\n", `label "a b"`},
		{"names that are empty", "names: {credentialIssuer: '', apiService: ''}\n", "validate names: missing required " +
			"names: credentialIssuer, apiService"},
		{
			"names that no object has", "names: {credentialIssuer: A/b}\n",
			`names.credentialIssuer is "A/b": a lowercase RFC 1123 subdomain`,
		},
		{
			"names that no Service has", "names: {impersonationLoadBalancerService: a.b}\n",
			`names.impersonationLoadBalancerService is "a.b"`,
		},
		{"app names with which no Service can begin", "appName: a.b\n", `appName is "a.b": must not contain dots`},
		{"app names of nothing", "appName: ''\n", `appName is ""`},
		{"files that are no YAML", "a: [\n", "reading configuration"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if _, err := load(t, test.file); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestReviewLifetimes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, file string
		allow      time.Duration
	}{
		{"is that of the API server", "", 10 * time.Second},
		{"is what the file says", "accessReviews: {allowTTL: 2s}\n", 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := must.Get(load(t, test.file))(t)
			if allow := parsed(config.AccessReviews.AllowTTL); allow != test.allow {
				t.Errorf("want %s, got %s", test.allow, allow)
			}
		})
	}
}

func TestPrintedConfigCanBeReadBack(t *testing.T) {
	t.Parallel()
	config := must.Get(load(t, peersFile))(t)
	var printed bytes.Buffer
	must.Do(t, config.Print(&printed))
	again := must.Get(load(t, printed.String()))(t)
	if diff := cmp.Diff(config, again); diff != "" {
		t.Errorf("(-printed +read):\n%s", diff)
	}
}

// TestTheFirstSpec checks that the CredentialIssuer spec in the default configuration is the same as that in the
// manifest next to it.
func TestTheFirstSpec(t *testing.T) {
	t.Parallel()
	read := func(name string, into any) {
		content := must.Get(os.ReadFile(filepath.Join("..", "..", "deploy", "concierge", name)))(t)
		must.Do(t, yaml.UnmarshalStrict(content, into))
	}
	var shipped corev1.ConfigMap
	read("config.yaml", &shipped)
	var manifest configv1alpha1.CredentialIssuer
	read("credentialissuer.yaml", &manifest)
	config, err := load(t, shipped.Data["pinniped.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&manifest.Spec, config.CredentialIssuerSpec); diff != "" {
		t.Errorf("(-manifest +configuration):\n%s", diff)
	}
	if config, err = load(t, peersFile); err != nil || config.CredentialIssuerSpec != nil {
		t.Errorf("got %+v, %v of a file that says nothing of it", config, err)
	}
	for _, refused := range []string{
		"credentialIssuerSpec: {}", "credentialIssuerSpec: {impersonationProxy: {mod: auto}}", "credentialIssuerSpec: auto",
	} {
		if _, err := load(t, refused); err == nil || !strings.Contains(err.Error(), "credentialIssuerSpec") {
			t.Errorf("%s: got %v", refused, err)
		}
	}
}
