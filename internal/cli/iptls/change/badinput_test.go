package change

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestBadInput checks that for realistic bad files the error names the problem, the hint helps, and nothing is written.
func TestBadInput(t *testing.T) {
	t.Parallel()
	again := func(data []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(data)) }
	der := func(data []byte) []byte {
		block, _ := pem.Decode(data)
		return block.Bytes
	}
	windows := func(data []byte) []byte { return bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n")) }
	old := must.Get(certs.NewCA("Old Intermediate", time.Now().Add(-48*time.Hour), time.Hour))(t)
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	request := must.Get(x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{DNSNames: []string{"proxy.example.com"}}, key))(t)
	for _, tt := range []struct {
		name   string
		change func(*iptlstest.World, *certs.KeyPair)
		code   int
		says   []string
	}{
		{"Windows line ends", func(_ *iptlstest.World, p *certs.KeyPair) {
			p.CertPEM, p.KeyPEM = windows(p.CertPEM), windows(p.KeyPEM)
		}, 0, []string{"configured"}},
		{
			"DER", func(_ *iptlstest.World, p *certs.KeyPair) { p.CertPEM = der(p.CertPEM) }, 3,
			[]string{"a certificate in binary DER", "openssl x509 -inform DER -in FILE -out new.pem"},
		},
		{
			"a key in DER", func(_ *iptlstest.World, p *certs.KeyPair) { p.KeyPEM = der(p.KeyPEM) }, 3,
			[]string{"a private key in binary DER", "openssl pkey -inform DER -in FILE -out new.pem"},
		},
		{"PKCS#12", func(_ *iptlstest.World, p *certs.KeyPair) {
			p.CertPEM = append([]byte{0x30, 0x82, 0x0a, 0x47, 0x02, 0x01, 0x03, 0x30, 0x82, 0x0a, 0x0d}, make([]byte, 2600)...)
		}, 3, []string{"it is PKCS#12", "openssl pkcs12 -in FILE -nokeys"}},
		{
			"base64 of PEM", func(_ *iptlstest.World, p *certs.KeyPair) { p.CertPEM = again(p.CertPEM) }, 3,
			[]string{"encoded once more as base64", "base64 -d FILE > new.pem; a Secret's `data` is already base64"},
		},
		{
			"base64 of base64 of PEM", func(_ *iptlstest.World, p *certs.KeyPair) { p.CertPEM = again(again(p.CertPEM)) }, 3,
			[]string{"encoded twice more as base64"},
		},
		{
			"the chain in the wrong order",
			func(w *iptlstest.World, p *certs.KeyPair) { p.CertPEM = append(w.CA.CertPEM(), p.CertPEM...) }, 3,
			[]string{"ChainOrder", "it must come first"},
		},
		{"a key with a passphrase", func(_ *iptlstest.World, p *certs.KeyPair) {
			p.KeyPEM = pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: der(p.KeyPEM)})
		}, 3, []string{"KeyEncrypted", "openssl pkey -in FILE -out new.pem"}},
		{"an old key with a passphrase", func(_ *iptlstest.World, p *certs.KeyPair) {
			p.KeyPEM = pem.EncodeToMemory(&pem.Block{
				Type: "RSA PRIVATE KEY", Headers: map[string]string{
					"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00",
				}, Bytes: der(p.KeyPEM),
			})
		}, 3, []string{"KeyEncrypted"}},
		{"an expired intermediate", func(_ *iptlstest.World, p *certs.KeyPair) {
			issued, err := old.IssueServing(iptlstest.Loopback(), time.Now(), 90*24*time.Hour)
			if err != nil {
				return
			}
			p.CertPEM, p.KeyPEM = append(issued.CertPEM, old.CertPEM()...), issued.KeyPEM
		}, 3, []string{"expired on "}},
		{
			"certificate and key exchanged",
			func(_ *iptlstest.World, p *certs.KeyPair) { p.CertPEM, p.KeyPEM = p.KeyPEM, p.CertPEM }, 3,
			[]string{"is a private key", "may be swapped"},
		},
		{
			"an empty file", func(_ *iptlstest.World, p *certs.KeyPair) { p.CertPEM = []byte("\n") }, 2,
			[]string{"the certificate in ", " is empty"},
		},
		{"a request", func(_ *iptlstest.World, p *certs.KeyPair) {
			p.CertPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})
		}, 3, []string{`is labelled "CERTIFICATE REQUEST"`, "the certificate that the CA returned"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Served(t)
			w.Cluster.TLSSecret = nil
			pair := &certs.KeyPair{CertPEM: bytes.Clone(w.Pair.CertPEM), KeyPEM: bytes.Clone(w.Pair.KeyPEM)}
			tt.change(w, pair)
			r := setFromFiles(t, w, pair, nil)
			r.Check(t, tt.code, tt.says...)
			if (w.Cluster.TLSSecret != nil) != (tt.code == 0) {
				t.Errorf("the Secret is there: %v", w.Cluster.TLSSecret != nil)
			}
			if all := r.Out.String() + r.ErrOut.String(); strings.Contains(all, "PRIVATE KEY-----") ||
				strings.Contains(all, base64.StdEncoding.EncodeToString(der(w.Pair.KeyPEM))[:40]) {
				t.Error("the key is printed")
			}
		})
	}
	t.Run("a CA bundle with Windows line ends", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		path := filepath.Join(t.TempDir(), "ca.pem")
		must.Do(t, os.WriteFile(path, windows(w.CA.CertPEM()), 0o600))
		runSet(t.Context(), w, func(o *SetOptions) { o.Certificate.CABundle = path }, "ca-bundle").Check(t, 0, "configured")
		decoded, err := base64.StdEncoding.DecodeString(w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.CertificateAuthorityData)
		if err != nil || !x509.NewCertPool().AppendCertsFromPEM(decoded) {
			t.Errorf("what is published cannot be read: %v", err)
		}
	})
	t.Run("a refusal that no --allow lets through does not offer it", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		pair := &certs.KeyPair{CertPEM: append(w.CA.CertPEM(), w.Pair.CertPEM...), KeyPEM: w.Pair.KeyPEM}
		r := setFromFiles(t, w, pair, nil)
		r.Check(t, 3, "ChainOrder")
		if strings.Contains(ui.HintOf(r.Err), "--allow") {
			t.Errorf("offers --allow: %s", ui.HintOf(r.Err))
		}
	})
}

// answering is a network in which a name resolves to the given addresses, or to an error.
type answering struct {
	session.RealNetwork
	addresses []netip.Addr
	err       error
}

func (n answering) Resolve(context.Context, string) ([]netip.Addr, error) { return n.addresses, n.err }

// TestBadEndpoint checks endpoints that do not lead to the proxy: the error has the reason, and the configuration is
// restored.
func TestBadEndpoint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		network func(*testing.T, *iptlstest.World) answering
		says    []string
	}{
		{
			"resolves to nothing", func(*testing.T, *iptlstest.World) answering { return answering{} },
			[]string{`"proxy.example.com" resolves to no address`},
		},
		{"is not known", func(*testing.T, *iptlstest.World) answering {
			return answering{err: &net.DNSError{Err: "no such host", Name: "proxy.example.com", IsNotFound: true}}
		}, []string{`resolving "proxy.example.com": lookup proxy.example.com: no such host`}},
		{"is somebody else's", func(_ *testing.T, _ *iptlstest.World) answering {
			return answering{addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
		}, []string{"presents another certificate", `issued by "CN=Somebody Else"`, "something in front of the agent terminates " +
			"TLS, or the address belongs to another server"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			other := iptlstest.StartProxy(t, iptlstest.Serving(t, iptlstest.NewCA(t, "Somebody Else"), iptlstest.Loopback()))
			at := "proxy.example.com:" + strconv.Itoa(other.Port)
			w.Cluster.AfterApply = func(c *iptlstest.Cluster) { c.Report("https://"+at, w.CA.CertPEM()) }
			r := runSet(t.Context(), w, func(o *SetOptions) {
				o.Certificate.ExternalEndpoint, o.Session.Timeout, o.Session.Network = at, iptlstest.TooShort, tt.network(t, w)
			}, "external-endpoint")
			r.Check(t, 5, append(tt.says, "the previous configuration was restored")...)
			if got := w.Cluster.Issuer.Spec.ImpersonationProxy; got.TLS != nil || got.ExternalEndpoint != w.Proxy.Endpoint() {
				t.Errorf("it was not put back: %+v", got)
			}
			status := runStatus(t.Context(), w, tt.network(t, w))
			status.Check(t, 5, "not in effect")
		})
	}
}
