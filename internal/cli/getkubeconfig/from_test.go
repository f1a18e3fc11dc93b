package getkubeconfig

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
)

// loginProxy is an impersonation proxy that serves login information.
type loginProxy struct {
	*httptest.Server
	ca   *certs.CA
	info logininfo.Info
	// respond, if set, responds instead of the document.
	respond http.HandlerFunc
}

func people(issuer string) (configv1alpha1.KubeconfigSpec, *logininfo.OIDC) {
	oidc := configv1alpha1.KubeconfigOIDC{
		ClientID:   "my-client",
		Scopes:     []string{"openid", "email"},
		Flow:       "device_code",
		ListenPort: 18000,
	}
	return configv1alpha1.KubeconfigSpec{ClusterName: "prod-eu", Logins: []configv1alpha1.KubeconfigLogin{{
		Name: "people", RefreshTrustBundle: true, OIDC: &oidc,
		Authenticator: configv1alpha1.KubeconfigAuthenticator{Kind: configv1alpha1.AuthenticatorKindJWT, Name: "corp"},
	}}}, &logininfo.OIDC{KubeconfigOIDC: oidc, Issuer: issuer, Audience: "cluster-1"}
}

func robots() configv1alpha1.KubeconfigLogin {
	return configv1alpha1.KubeconfigLogin{Name: "robots", Authenticator: configv1alpha1.KubeconfigAuthenticator{
		Kind: configv1alpha1.AuthenticatorKindWebhook, Name: "hook",
	}}
}

// newLoginProxy serves on loopback with a certificate for names.
func newLoginProxy(t *testing.T, names certs.SANs, issued time.Time, issuer string, issuerCA []byte) *loginProxy {
	t.Helper()
	ca, err := certs.NewCA("CA", time.Now().Add(-48*time.Hour), 96*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := ca.IssueServing(names, issued, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(serving.CertPEM, serving.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	p := &loginProxy{ca: ca}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.Header.Get("Authorization") != "":
			t.Error("the request has a credential")
		case req.URL.Path != logininfo.Path:
			http.NotFound(w, req)
		case p.respond != nil:
			p.respond(w, req)
		default:
			document, err := logininfo.Encode(p.info)
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(document)
		}
	}))
	p.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.StartTLS()
	t.Cleanup(p.Close)
	block, oidc := people(issuer)
	oidc.CABundle = issuerCA
	p.info = logininfo.Info{
		ClusterName: block.ClusterName, Endpoint: p.URL, CABundle: ca.CertPEM(), APIGroupSuffix: suffix,
		Logins: []logininfo.Login{{
			Name: "people", Authenticator: block.Logins[0].Authenticator, OIDC: oidc, RefreshTrustBundle: true,
		}},
	}
	return p
}

func loopback() certs.SANs { return certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}} }

// fetching returns Options for a user without access to the cluster.
func fetching(t *testing.T, p *loginProxy) (*Options, *bytes.Buffer) {
	t.Helper()
	o, out, _ := options(t, nil, nil)
	o.Connect, o.StaticTokenEnv, o.In, o.Now = nil, "", strings.NewReader("yes\n"), time.Now
	o.From = From{URL: p.URL, Fingerprints: []string{"sha256:" + certs.Fingerprint(p.ca.Certificate().Raw)}}
	o.From.Roots = x509.NewCertPool()
	return o, out
}

func run(t *testing.T, o *Options) error {
	t.Helper()
	if err := o.Validate(); err != nil {
		return err
	}
	return o.Run(t.Context())
}

// TestFromProxy checks that fetched kubeconfigs equal those of an administrator byte for byte, for all destinations.
func TestFromProxy(t *testing.T) {
	t.Parallel()
	issuer, issuerCA := issuerServer(t, "", "")
	p := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
	block, _ := people(issuer)

	makeBoth := func(change func(*Options)) (fetched, administrators string) {
		t.Helper()
		strategy := discoverytest.ProxyStrategy(p.URL, p.ca.CertPEM())
		credentialIssuer := discoverytest.Issuer(suffix, "issuer", strategy)
		credentialIssuer.Spec.ImpersonationProxy = &configv1alpha1.ImpersonationProxySpec{Kubeconfig: &block}
		cluster := &fake{issuers: []any{credentialIssuer}, authenticator: jwtAuthenticator(issuer), bundle: issuerCA}
		admin, adminOut, _ := options(t, &clientcmdapi.Cluster{Server: "https://10.0.0.1"}, cluster)
		admin.StaticTokenEnv = ""
		user, userOut := fetching(t, p)
		for _, o := range []*Options{admin, user} {
			change(o)
			if err := run(t, o); err != nil {
				t.Fatal(err, ui.HintOf(err))
			}
			if file := o.Destination.file(); file != "" {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
				_, _ = o.Out.Write(content)
			}
		}
		return userOut.String(), adminOut.String()
	}
	folder := t.TempDir()
	for name, change := range map[string]func(*Options){
		"to stdout":    func(o *Options) {},
		"into a file":  func(o *Options) { o.Destination.Output = filepath.Join(folder, "out.yaml") },
		"another name": func(o *Options) { o.Names.Context = "mine" },
		"merged": func(o *Options) {
			o.Destination = Destination{MergeInto: filepath.Join(folder, "merged.yaml"), SetCurrent: true, LockTimeout: time.Minute}
		},
		"flags win": func(o *Options) {
			o.Given = func(flag string) bool { return flag == "oidc-client-id" || flag == "follow" }
			o.OIDC.ClientID = "another"
		},
	} {
		got, want := makeBoth(change)
		if diff := cmp.Diff(want, got); diff != "" || want == "" {
			t.Errorf("%s: the administrator's (-) and the user's (+):\n%s", name, diff)
		}
		client, follow := "--client-id=my-client", true
		if name == "flags win" {
			client, follow = "--client-id=another", false
		}
		if !strings.Contains(got, client) || strings.Contains(got, "--follow") != follow ||
			!strings.Contains(got, "name: prod-eu\n") || !strings.Contains(got, "name: prod-eu-people\n") {
			t.Errorf("%s:\n%s", name, got)
		}
	}

	// The page's kubeconfig is the same.
	got, _ := makeBoth(func(o *Options) { o.InstallHint = kubeconfig.DefaultInstallHint })
	if page, err := p.info.Kubeconfig(&p.info.Logins[0]); err != nil || string(page) != got {
		t.Errorf("the download of the page (-) and the user's (+): %v\n%s", err, cmp.Diff(string(page), got))
	}
}

// TestNameOfAnotherCluster checks that a proxy cannot replace the entries of another cluster by its name.
func TestNameOfAnotherCluster(t *testing.T) {
	t.Parallel()
	issuer, issuerCA := issuerServer(t, "", "")
	victim := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
	evil := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
	file := filepath.Join(t.TempDir(), "config")
	merge := func(p *loginProxy) error {
		o, _ := fetching(t, p)
		o.Destination = Destination{MergeInto: file, LockTimeout: time.Minute}
		return run(t, o)
	}
	if err := merge(victim); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := merge(evil); err == nil || !strings.Contains(ui.HintOf(err), "--cluster-name") {
		t.Errorf("want a hint about other names, got %v (%s)", err, ui.HintOf(err))
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file has become\n%s, %v", after, err)
	}
}

// TestTrustInProxy checks how a proxy is verified, and that no CA is trusted silently.
func TestTrustInProxy(t *testing.T) {
	t.Parallel()
	issuer, issuerCA := issuerServer(t, "", "")
	good := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
	elsewhere := newLoginProxy(t, certs.SANs{DNSNames: []string{"other.example.com"}}, time.Now(), issuer, issuerCA)
	expired := newLoginProxy(t, loopback(), time.Now().Add(-24*time.Hour), issuer, issuerCA)
	// The impostor publishes the CA of the good proxy, but has no certificate from it.
	impostor := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
	impostor.info.CABundle = good.ca.CertPEM()
	both := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
	both.info.CABundle = append(good.ca.CertPEM(), both.ca.CertPEM()...)
	pin := func(p *loginProxy) []string { return []string{certs.Fingerprint(p.ca.Certificate().Raw)} }
	trusted := x509.NewCertPool()
	trusted.AddCert(good.ca.Certificate())
	trusted.AddCert(elsewhere.ca.Certificate())
	trusted.AddCert(expired.ca.Certificate())
	none := x509.NewCertPool()

	for name, test := range map[string]struct {
		proxy  *loginProxy
		from   From
		bundle []byte
		says   string // empty: it works
	}{
		"the fingerprint":                          {proxy: good, from: From{Fingerprints: pin(good), Roots: none}},
		"the fingerprint of one of two":            {proxy: both, from: From{Fingerprints: pin(both), Roots: none}},
		"the fingerprint of one that verifies not": {proxy: both, from: From{Fingerprints: pin(good), Roots: none}, says: "not in --ca-fingerprint"},
		"another fingerprint":                      {proxy: good, from: From{Fingerprints: pin(both), Roots: none}, says: "not in --ca-fingerprint"},
		"another fingerprint and the system roots": {proxy: good, from: From{Fingerprints: pin(both), Roots: trusted}, says: "not in --ca-fingerprint"},
		"the CA bundle":                            {proxy: good, from: From{Roots: none}, bundle: good.ca.CertPEM()},
		"another CA bundle":                        {proxy: good, from: From{Roots: trusted}, bundle: both.ca.CertPEM(), says: "unknown authority"},
		"the system roots":                         {proxy: good, from: From{Roots: trusted}},
		"nothing, and no terminal":                 {proxy: good, from: From{Roots: none}, says: certs.Fingerprint(good.ca.Certificate().Raw)},
		"another name":                             {proxy: elsewhere, from: From{Roots: trusted}, says: "cannot validate certificate for 127.0.0.1"},
		"another name, pinned":                     {proxy: elsewhere, from: From{Fingerprints: pin(elsewhere), Roots: none}, says: "cannot validate certificate for 127.0.0.1"},
		"an expired one":                           {proxy: expired, from: From{Roots: trusted}, says: "expired"},
		"an expired one, pinned":                   {proxy: expired, from: From{Fingerprints: pin(expired), Roots: none}, says: "expired"},
		"an impostor with our CA":                  {proxy: impostor, from: From{Fingerprints: pin(good), Roots: none}, says: "unknown authority"},
		"an impostor whose CA is the pinned one":   {proxy: impostor, from: From{Fingerprints: pin(impostor), Roots: none}, says: "unknown authority"},
	} {
		o, out := fetching(t, test.proxy)
		test.from.URL = test.proxy.URL
		o.From, o.CABundle = test.from, test.bundle
		err := run(t, o)
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (out.Len() > 0 || ui.HintOf(err) == "") {
			t.Errorf("%s: printed %q, and the hint is %q", name, out, ui.HintOf(err))
		}
	}
}

// TestHostileProxies checks that a verified proxy can do no more than cause errors.
func TestHostileProxies(t *testing.T) {
	t.Parallel()
	issuer, issuerCA := issuerServer(t, "", "")
	p := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a redirect is followed")
	}))
	t.Cleanup(other.Close)
	document, err := logininfo.Encode(p.info)
	if err != nil {
		t.Fatal(err)
	}
	text := string(document)
	send := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
	}
	for name, test := range map[string]struct {
		respond http.HandlerFunc
		says    string
	}{
		"a redirect": {
			func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, other.URL, http.StatusFound) }, "302 Found",
		},
		"no offer":   {http.NotFound, "the proxy offers no kubeconfig"},
		"a page":     {send("<html>"), "is not a login document"},
		"no version": {send(`{"kind":"LoginInfo"}`), "version"},
		"an endless body": {
			func(w http.ResponseWriter, req *http.Request) {
				for req.Context().Err() == nil {
					if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<16)); err != nil {
						return
					}
				}
			}, "more than",
		},
		"a body that stops": {
			func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.WriteString(w, "{")
				_ = http.NewResponseController(w).Flush()
				<-req.Context().Done()
			}, "deadline exceeded",
		},
		"another endpoint": {
			send(strings.Replace(text, p.URL, "https://evil.example.com", 1)), "reports its address as https://evil.example.com",
		},
		"a CA that does not verify it": {
			send(strings.Replace(text, base64.StdEncoding.EncodeToString(p.ca.CertPEM()), base64.StdEncoding.EncodeToString(issuerCA), 1)),
			"does not verify the proxy's certificate",
		},
		"a flag as client ID": {send(strings.Replace(text, "my-client", "--token=x", 1)), "clientID"},
	} {
		p.respond = test.respond
		o, out := fetching(t, p)
		o.From.Fingerprints, o.From.Roots = nil, x509.NewCertPool()
		o.From.Roots.AddCert(p.ca.Certificate())
		if name == "a body that stops" {
			o.Timeout = 200 * time.Millisecond
		}
		if err := run(t, o); err == nil || !strings.Contains(err.Error(), test.says) || out.Len() > 0 {
			t.Errorf("%s: %v; printed %q", name, err, out)
		}
	}
}

// TestSeveralLogins checks how one of several logins is chosen, for administrators and users.
func TestSeveralLogins(t *testing.T) {
	t.Parallel()
	issuer, issuerCA := issuerServer(t, "", "")
	p := newLoginProxy(t, loopback(), time.Now(), issuer, issuerCA)
	second := p.info.Logins[0]
	second.Name = "admins"
	hook := robots()
	p.info.Logins = append(p.info.Logins, second, logininfo.Login{Name: hook.Name, Authenticator: hook.Authenticator})
	for name, test := range map[string]struct {
		login  Login
		static string
		says   string
		has    string
	}{
		"none":           {says: `there are several logins: "people" (JWTAuthenticator corp), "admins" (JWTAuthenticator corp)`},
		"one of them":    {login: "admins", has: "name: prod-eu-admins"},
		"one with token": {static: "MY_TOKEN", has: "--token-env=MY_TOKEN"},
		"no such":        {login: "nobody", says: `no login "nobody"; available: "people"`},
	} {
		o, out := fetching(t, p)
		o.Login, o.StaticTokenEnv = test.login, test.static
		err := run(t, o)
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.Contains(out.String(), test.has) {
			t.Errorf("%s: no %q in\n%s", name, test.has, out)
		}
	}
}

// TestPrintLogin checks that with the printed block, the command without flags gives the same result.
func TestPrintLogin(t *testing.T) {
	t.Parallel()
	issuer, issuerCA := issuerServer(t, "", "")
	cluster := proxied(jwtAuthenticator(issuer))
	cluster.bundle = issuerCA
	o, out, errOut := options(t, &clientcmdapi.Cluster{Server: "https://10.0.0.1"}, cluster)
	o.StaticTokenEnv, o.PrintLogin, o.Login, o.Names.Cluster = "", true, "people", "prod-eu"
	o.OIDC.ClientID, o.OIDC.Scopes, o.OIDC.ListenPort = "my-client", []string{"openid", "email"}, 18000
	if err := run(t, o); err != nil {
		t.Fatal(err)
	}
	const want = `spec:
  impersonationProxy:
    kubeconfig:
      clusterName: prod-eu
      logins:
      - authenticator:
          kind: JWTAuthenticator
          name: corp
        name: people
        oidc:
          clientID: my-client
          listenPort: 18000
          scopes:
          - openid
          - email
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(errOut.String(), "kubectl patch credentialissuers.config.concierge.pinniped.dev/issuer") {
		t.Errorf("no command: %s", errOut)
	}
}
