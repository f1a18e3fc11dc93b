package check

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
)

func runCheck(
	t *testing.T,
	w *iptlstest.World,
	change func(*Options),
	changed ...string,
) (*iptlstest.Run, result.Check) {
	t.Helper()
	r := &iptlstest.Run{}
	o := &Options{
		Session:     sessiontest.New(w, r),
		Certificate: session.CertificateFlags{Changed: iptlstest.Given(changed...)},
	}
	o.Session.Output = "json"
	if change != nil {
		change(o)
	}
	r.Do(t.Context(), o)
	var checked result.Check
	if o.Session.Output == "json" && r.Out.Len() > 0 {
		if err := json.Unmarshal(r.Out.Bytes(), &checked); err != nil {
			t.Fatalf("%v in %s", err, r.Out.String())
		}
	}
	if strings.Contains(r.Out.String()+r.ErrOut.String(), "PRIVATE KEY-----\n") {
		t.Error("a private key is printed")
	}
	return r, checked
}

func TestCheckCluster(t *testing.T) {
	t.Parallel()
	configured := func(w *iptlstest.World) {
		w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "proxy-tls"}
	}
	for _, tt := range []struct {
		name   string
		world  func(*iptlstest.World)
		change func(*Options)
		code   int
		says   string
		source result.Source
	}{
		{
			name: "judges the configured certificate", world: configured, says: `"name": "Secret pinniped-concierge/proxy-tls"`,
			source: "cluster",
		},
		{
			name: "says what set would say of another Secret", change: func(o *Options) { o.Certificate.Secret = "proxy-tls" },
			says: `"code": "OldClientsBreak"`, source: "cluster", code: 3,
		},
		{
			name: "finds the error in the configured certificate", code: 3, says: "KeyUnreadable", source: "cluster",
			world: func(w *iptlstest.World) { configured(w); w.Cluster.TLSSecret.Data["tls.key"] = []byte("x") },
		},
		{
			name: "judges for another time", world: configured, code: 3, says: "Expired:", source: "cluster",
			change: func(o *Options) { o.At = time.Now().Add(100 * 24 * time.Hour).Format(time.DateOnly) },
		},
		{
			name: "knows when it breaks", world: configured, change: func(o *Options) { o.Timeline = true },
			says: `"breaksAt"`, source: "cluster",
		},
		{name: "looks at the endpoint while the agent's own is served", says: `"name": "127.0.0.1:`, source: "endpoint"},
		{
			name:  "cannot check an endpoint that is not published",
			world: func(w *iptlstest.World) { w.Cluster.Issuer.Status.Strategies = nil },
			code:  1, says: "names no certificate",
		},
		{name: "refuses a load balancer address without a load balancer", code: 2, says: "type None", change: func(o *Options) {
			o.Certificate.LoadBalancerIP, o.Certificate.Changed = "203.0.113.7", iptlstest.Given("load-balancer-ip")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			if tt.world != nil {
				tt.world(w)
			}
			r, checked := runCheck(t, w, tt.change)
			r.Check(t, tt.code, tt.says)
			if checked.Source != tt.source || tt.source != "" && checked.OK != (tt.code == 0) {
				t.Errorf("source %q, ok %v", checked.Source, checked.OK)
			}
			if len(w.Cluster.Options) > 0 {
				t.Error("something was applied")
			}
		})
	}
}

func TestCheckTimeline(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "proxy-tls"}
	_, result := runCheck(t, w, func(o *Options) { o.Timeline = true })
	leaf, _ := certs.ParseBundle(w.Pair.CertPEM)
	want := leaf[0].NotAfter.Add(time.Second)
	if got := result.Subjects[0].BreaksAt; got == nil || !got.Equal(want) {
		t.Errorf("it breaks at %v, want %v", got, want)
	}
	if got := len(result.Subjects[0].Timeline); got != 3 {
		t.Errorf("%d events, want a third left, a tenth left, and expired: %+v", got, result.Subjects[0].Timeline)
	}
	r, result := runCheck(t, w, func(o *Options) { o.Timeline, o.At = true, "2099-01-01" })
	r.Check(t, 3)
	if got := result.Subjects[0].BreaksAt; got == nil || !got.Equal(result.At) {
		t.Errorf("what is broken already breaks at %v, want %v", got, result.At)
	}
}

func TestCheckFiles(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	directory := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key, ca := write("a cert.pem", w.Pair.CertPEM), write("key.pem", w.Pair.KeyPEM), write("ca.pem", w.CA.CertPEM())
	other := write("other.pem", iptlstest.Serving(t, w.CA, iptlstest.Loopback()).KeyPEM)
	for _, tt := range []struct {
		name       string
		key        string
		names      []string
		code       int
		finds      certs.Code
		notChecked int
	}{
		{name: "takes a good one", key: key, names: []string{"proxy.example.com", "127.0.0.1"}, notChecked: 1},
		{name: "says what it cannot check", notChecked: 3},
		{
			name: "refuses another name", names: []string{"other.example.com"}, code: 3, finds: certs.NameNotCovered,
			notChecked: 2,
		},
		{
			name: "refuses another key", key: other, names: []string{"proxy.example.com"}, code: 3, finds: certs.KeyMismatch,
			notChecked: 1,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			flags := []string{"cert", "ca-bundle"}
			if tt.key != "" {
				flags = append(flags, "key")
			}
			r, result := runCheck(t, w, func(o *Options) {
				o.Session.Connect = nil // no cluster
				o.Cert, o.Certificate.CABundle, o.Names = []string{cert}, ca, tt.names
				if tt.key != "" {
					o.Key = []string{tt.key}
				}
			}, flags...)
			r.Check(t, tt.code)
			if got := result.Subjects[0].Certificate; tt.finds != "" && !got.Has(tt.finds) {
				t.Errorf("want %s, got %v", tt.finds, got.Findings)
			}
			if len(result.NotChecked) != tt.notChecked {
				t.Errorf("not checked: %q, want %d", result.NotChecked, tt.notChecked)
			}
		})
	}
}

func TestCheckEndpoint(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, w.CA.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	parse := func(pair *certs.KeyPair) []*x509.Certificate {
		block, _ := pem.Decode(pair.CertPEM)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return []*x509.Certificate{cert}
	}
	one, two := parse(w.Pair), parse(iptlstest.Serving(t, w.CA, iptlstest.Loopback()))
	addresses := []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.8")}
	for _, tt := range []struct {
		name     string
		network  iptlstest.Network
		code     int
		subjects int
		finds    certs.Code
	}{
		{
			name: "puts alike ones together", subjects: 1,
			network: iptlstest.Network{
				Addresses: addresses, Chains: map[string][]*x509.Certificate{"203.0.113.7:8443": one, "203.0.113.8:8443": one},
			},
		},
		{
			name: "warns of different ones", subjects: 2, finds: certs.EndpointServesOther,
			network: iptlstest.Network{
				Addresses: addresses, Chains: map[string][]*x509.Certificate{"203.0.113.7:8443": one, "203.0.113.8:8443": two},
			},
		},
		{
			name: "refuses where one does not respond", subjects: 2, finds: certs.EndpointUnreachable, code: 1,
			network: iptlstest.Network{
				Addresses: addresses, Chains: map[string][]*x509.Certificate{"203.0.113.7:8443": one},
				Errs: map[string]error{"203.0.113.8:8443": os.ErrDeadlineExceeded},
			},
		},
		{name: "refuses a host without addresses", subjects: 1, finds: certs.EndpointUnreachable, code: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, result := runCheck(t, w, func(o *Options) {
				o.Session.Connect, o.Session.Network, o.Endpoint, o.Certificate.CABundle = nil, tt.network, "proxy.example.com:8443", bundle
			}, "endpoint", "ca-bundle")
			r.Check(t, tt.code)
			if len(result.Subjects) != tt.subjects {
				t.Fatalf("%d certificates, want %d: %+v", len(result.Subjects), tt.subjects, result.Subjects)
			}
			if got := result.Subjects[tt.subjects-1].Certificate; tt.finds != "" && !got.Has(tt.finds) {
				t.Errorf("want %s, got %v", tt.finds, got.Findings)
			}
		})
	}
}

// TestForeignTextOfCertificates checks certificates with hostile names and issuers.
func TestForeignTextOfCertificates(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*iptlstest.World){
		"a CA and names": func(w *iptlstest.World) {
			hostile := iptlstest.NewCA(t, iptlstest.Hostile)
			pair := iptlstest.Serving(t, hostile, certs.SANs{DNSNames: []string{"a\nhint: run evil\x1b[2J", "proxy.example.com"}})
			w.Cluster.TLSSecret.Data = map[string][]byte{
				"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": hostile.CertPEM(),
			}
		},
		"a Secret": func(w *iptlstest.World) {
			w.Cluster.TLSSecret.Type = iptlstest.Hostile
			w.Cluster.TLSSecret.Data["tls.crt"] = []byte(iptlstest.Hostile)
		},
		"the status": func(w *iptlstest.World) {
			w.Cluster.Issuer.Status.Strategies = append(w.Cluster.Issuer.Status.Strategies,
				iptlstest.FailedReport(iptlstest.Hostile, iptlstest.Hostile))
			w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = iptlstest.Hostile
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			change(w)
			for _, timeline := range []bool{false, true} {
				r, _ := runCheck(t, w, func(o *Options) {
					o.Session.Output, o.Certificate.Secret, o.Timeline = "text", "proxy-tls", timeline
				})
				r.Forges(t)
			}
		})
	}
}
