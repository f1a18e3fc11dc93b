package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
)

// Names of objects that the agent of a script reads and writes.
const (
	agentNamespace = "pinniped-concierge"
	issuerName     = "pinniped-concierge-config"
	issuerPath     = "/apis/config.concierge.pinniped.dev/v1alpha1/credentialissuers/" + issuerName
	secretsPath    = "/api/v1/namespaces/" + agentNamespace + "/secrets/"
	servingSecret  = "pinniped-concierge-impersonation-proxy-tls-serving-certificate"
	caSecret       = "pinniped-concierge-impersonation-proxy-ca-certificate"
)

// scriptAgent is an agent that applies the CredentialIssuer at once: its proxy on loopback presents the configured
// certificate, and the status reports it.
type scriptAgent struct {
	server      *discoverytest.Server
	certificate atomic.Pointer[tls.Certificate]
	url         string
	generated   *certs.CA
	version     int

	day     time.Time // time of the next change, for an agent with history; else zero
	history serving.History
}

// agentCommand starts an agent and its proxy. It first creates the Secrets proxy-tls and next-tls, with certificates of
// the Company CA and the Next CA, and writes the content of proxy-tls to company-ca.pem, company-fullchain.pem and
// company-key.pem. With the argument memory, the agent keeps a revision history with a day between two changes, and
// GENERATED_STATE is the ID of the first revision. It sets PROXY to the HOST:PORT of the proxy and, for each PREFIX of
// COMPANY, NEXT and GENERATED: PREFIX_CA_DATA (CA bundle in base64), PREFIX_CA_SHA256 and PREFIX_CA (the CA's
// fingerprint, full and 16 digits), PREFIX_SHA256 and PREFIX_SHORT (the serving certificate's fingerprint), and
// PREFIX_FROM and PREFIX_UNTIL (its validity).
func agentCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 || len(args) == 1 && args[0] != "memory" {
		ts.Fatalf("usage: agent [memory]")
	}
	server, _ := ts.Value(serverKey{}).(*discoverytest.Server)
	now := time.Now()
	a := &scriptAgent{server: server}
	if len(args) == 1 {
		a.day = now.UTC().Truncate(24 * time.Hour).Add(-9 * 24 * time.Hour)
	}
	names := certs.SANs{DNSNames: []string{"proxy.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1).To4()}}
	issue := func(prefix, commonName, secret string, days int) (*certs.CA, *certs.KeyPair) {
		ca, err := certs.NewCA(commonName, now, 10*365*24*time.Hour)
		ts.Check(err)
		pair, err := ca.IssueServing(names, now, time.Duration(days)*24*time.Hour)
		ts.Check(err)
		ts.Check(server.Put(secretOf(secret, pair.CertPEM, pair.KeyPEM, ca.CertPEM())))
		chain, _ := certs.ParseBundle(pair.CertPEM)
		ts.Setenv(prefix+"_CA", certs.Fingerprint(ca.Certificate().Raw)[:16])
		ts.Setenv(prefix+"_CA_SHA256", certs.Fingerprint(ca.Certificate().Raw))
		ts.Setenv(prefix+"_CA_DATA", base64.StdEncoding.EncodeToString(ca.CertPEM()))
		ts.Setenv(prefix+"_SHA256", certs.Fingerprint(chain[0].Raw))
		ts.Setenv(prefix+"_SHORT", certs.Fingerprint(chain[0].Raw)[:16])
		ts.Setenv(prefix+"_FROM", chain[0].NotBefore.UTC().Format(time.RFC3339))
		ts.Setenv(prefix+"_UNTIL", chain[0].NotAfter.UTC().Format(time.RFC3339))
		return ca, pair
	}
	company, pair := issue("COMPANY", "Company CA", "proxy-tls", 90)
	for name, content := range map[string][]byte{
		"company-ca.pem": company.CertPEM(), "company-fullchain.pem": pair.CertPEM, "company-key.pem": pair.KeyPEM,
	} {
		ts.Check(os.WriteFile(ts.MkAbs(filepath.Base(name)), content, 0o600))
	}
	issue("NEXT", "Next CA", "next-tls", 120)
	a.generated, _ = issue("GENERATED", "Pinniped Impersonation Proxy Serving CA", servingSecret, 365)
	key, err := a.generated.KeyPEM()
	ts.Check(err)
	ts.Check(server.Put(map[string]any{
		"apiVersion": "v1",
		"kind":       "Secret",
		"metadata":   map[string]any{"name": caSecret, "namespace": agentNamespace, "resourceVersion": "1"},
		"data":       map[string]any{"ca.crt": a.generated.CertPEM(), "ca.key": key},
	}))
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = listener.Close() })
	a.url = "https://" + listener.Addr().String()
	ts.Setenv("PROXY", listener.Addr().String())
	issuer := discoverytest.Issuer(apis.DefaultGroupSuffix, issuerName)
	issuer.Spec.ImpersonationProxy.Service.Type = configv1alpha1.ServiceTypeNone
	issuer.Spec.ImpersonationProxy.ExternalEndpoint = listener.Addr().String()
	ts.Check(a.obey(issuer))
	if current := a.history.Current(); current != nil {
		ts.Setenv("GENERATED_STATE", current.ID)
	}
	server.Changed = func(path string) {
		if path != issuerPath {
			return
		}
		var changed configv1alpha1.CredentialIssuer
		err := decode(server.Object(path), &changed)
		if err == nil {
			err = a.obey(&changed)
		}
		if err != nil {
			panic(err) // closes the connection, so that the command fails
		}
	}
	go a.serve(listener)
}

func secretOf(name string, cert, key, ca []byte) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": corev1.SecretTypeTLS,
		"metadata": map[string]any{"name": name, "namespace": agentNamespace, "resourceVersion": "1"},
		"data":     map[string]any{"tls.crt": cert, "tls.key": key, "ca.crt": ca},
	}
}

func decode(object map[string]any, into any) error {
	encoded, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return json.Unmarshal(encoded, into)
}

// serve presents the certificate in service, and rejects every request.
func (a *scriptAgent) serve(listener net.Listener) {
	server := &http.Server{
		Handler: http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // clients may close the connection after the handshake
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.certificate.Load(), nil },
		},
	}
	_ = server.ServeTLS(listener, "", "") // until the listener is closed
}

// obey serves the certificate in the spec, and reports it.
func (a *scriptAgent) obey(issuer *configv1alpha1.CredentialIssuer) error {
	name, source := servingSecret, configv1alpha1.ServingCertificateGenerated
	block := issuer.Spec.ImpersonationProxy.TLS
	if block != nil {
		name = block.SecretName
		if name != servingSecret {
			source = configv1alpha1.ServingCertificateSecret
		}
	}
	var secret corev1.Secret
	if err := decode(a.server.Object(secretsPath+name), &secret); err != nil {
		return err
	}
	certificate, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		return err
	}
	a.certificate.Store(&certificate)
	bundle := secret.Data["ca.crt"]
	if block != nil && block.CertificateAuthorityData != "" {
		if bundle, err = base64.StdEncoding.DecodeString(block.CertificateAuthorityData); err != nil {
			return err
		}
	}
	a.version++
	issuer.ResourceVersion = strconv.Itoa(a.version)
	issuer.Status = configv1alpha1.CredentialIssuerStatus{
		Strategies: []configv1alpha1.CredentialIssuerStrategy{discoverytest.ProxyStrategy(a.url, bundle)},
		ServingCertificate: &configv1alpha1.ServingCertificateStatus{
			Source:          source,
			SecretName:      name,
			SHA256:          certs.Fingerprint(certificate.Certificate[0]),
			Replicas:        2,
			ServingReplicas: 2,
			NotBefore:       metav1.NewTime(certificate.Leaf.NotBefore),
			NotAfter:        metav1.NewTime(certificate.Leaf.NotAfter),
		},
		Objects: &configv1alpha1.ObjectNames{
			Namespace: agentNamespace, GeneratedCertificateSecret: servingSecret, GeneratedCASecret: caSecret,
			LoadBalancerService:            strings.Replace(caSecret, "ca-certificate", "load-balancer", 1),
			ClusterIPService:               strings.Replace(caSecret, "ca-certificate", "cluster-ip", 1),
			LastKnownGoodCertificateSecret: strings.Replace(caSecret, "ca-certificate", "last-known-good-certificate", 1),
		},
	}
	published := serving.Published{
		Endpoint: a.url, Bundle: bundle, Chain: []*x509.Certificate{certificate.Leaf},
		Change: serving.Change{
			Outcome: serving.OutcomeInService,
			Spec:    &serving.RevisionSpec{TLS: block, ExternalEndpoint: issuer.Spec.ImpersonationProxy.ExternalEndpoint},
		},
	}
	if err := a.record(issuer, published); err != nil {
		return err
	}
	if err := a.server.Put(map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": "replica", "namespace": agentNamespace},
		"spec":     map[string]any{"leaseDurationSeconds": 3600, "renewTime": time.Now().UTC().Format(metav1.RFC3339Micro)},
	}); err != nil {
		return err
	}
	return a.server.Put(issuer)
}

// record adds a revision if the agent has a history. A day passes between two changes.
func (a *scriptAgent) record(issuer *configv1alpha1.CredentialIssuer, published serving.Published) error {
	if a.day.IsZero() {
		return nil
	}
	issuer.Status.Objects.RevisionsConfigMap = "pinniped-concierge-revisions"
	if now := a.history.Current(); now != nil && now.Endpoint == published.Endpoint &&
		bytes.Equal(now.Bundle, published.Bundle) {
		return nil
	}
	var err error
	if a.history, err = a.history.Append(published, a.day, serving.DefaultRetention); err != nil {
		return err
	}
	if current := a.history.Current(); current != nil { // it has clients
		a.history, _ = a.history.Used(current.ID, "", a.day)
	}
	a.day = a.day.Add(24 * time.Hour)
	return a.server.Put(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"name":            issuer.Status.Objects.RevisionsConfigMap,
			"namespace":       agentNamespace,
			"resourceVersion": strconv.Itoa(a.version),
		},
		"data": map[string]string{serving.RevisionsKey: string(a.history.Encode())},
	})
}
