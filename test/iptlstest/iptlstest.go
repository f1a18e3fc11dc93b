// Package iptlstest is the environment for tests of `pinniped ip-tls`: a cluster in memory with a simulated agent, and
// a proxy on loopback that presents real certificates.
package iptlstest

import (
	"cmp"
	"encoding/base64"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// World is a cluster with a generated certificate in service, and a Secret with an external one.
type World struct {
	Cluster   *Cluster
	Proxy     *Proxy
	Generated *certs.CA
	CA        *certs.CA
	Pair      *certs.KeyPair
	// Outcome is the outcome of the configuration; empty means in service.
	Outcome serving.RevisionOutcome
}

// NewCA creates a CA.
func NewCA(t *testing.T, name string) *certs.CA {
	t.Helper()
	ca := must.Get(certs.NewCA(name, time.Now(), 10*365*24*time.Hour))(t)
	return ca
}

// Serving issues a serving certificate.
func Serving(t *testing.T, ca *certs.CA, names certs.SANs) *certs.KeyPair {
	t.Helper()
	pair := must.Get(ca.IssueServing(names, time.Now(), 90*24*time.Hour))(t)
	return pair
}

// Loopback returns the names of the proxy's certificate.
func Loopback() certs.SANs {
	return certs.SANs{DNSNames: []string{"proxy.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1).To4()}}
}

// TooShort is a --timeout for a condition that never becomes true. It is long enough for the steps before it, even on a
// busy machine.
const TooShort = 2 * time.Second

// New returns a world in which the agent has reported its generated certificate, and does not react to changes.
func New(t *testing.T) *World {
	t.Helper()
	w := &World{Generated: NewCA(t, "Pinniped Impersonation Proxy Serving CA"), CA: NewCA(t, "Company CA")}
	w.Proxy = StartProxy(t, Serving(t, w.Generated, Loopback()))
	w.Pair = Serving(t, w.CA, Loopback())
	w.Cluster = &Cluster{
		Issuer: &configv1alpha1.CredentialIssuer{
			ObjectMeta: metav1.ObjectMeta{Name: "pinniped-concierge-config"},
			Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{
				Mode:             configv1alpha1.ImpersonationProxyModeEnabled,
				Service:          configv1alpha1.ImpersonationProxyServiceSpec{Type: configv1alpha1.ServiceTypeNone},
				ExternalEndpoint: w.Proxy.Endpoint(),
			}},
		},
		TLSSecret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "proxy-tls", Namespace: "pinniped-concierge", ResourceVersion: "1"},
			Type:       corev1.SecretTypeTLS,
			Data: map[string][]byte{
				"tls.crt": w.Pair.CertPEM, "tls.key": w.Pair.KeyPEM,
				"ca.crt": w.CA.CertPEM(),
			},
		},
		services: map[string]*corev1.Service{},
	}
	key := must.Get(w.Generated.KeyPEM())(t)
	w.Cluster.CASecret = &corev1.Secret{Data: map[string][]byte{"ca.crt": w.Generated.CertPEM(), "ca.key": key}}
	w.Cluster.Report(w.Proxy.URL(), w.Generated.CertPEM())
	return w
}

// Obey simulates the agent: after each change of the CredentialIssuer, the proxy presents the configured certificate
// and the status reports its CA bundle.
func (w *World) Obey(t *testing.T) {
	t.Helper()
	w.Cluster.AfterApply = func(c *Cluster) {
		pair, bundle := w.configured(t)
		w.Proxy.Serve(t, pair)
		c.Report(w.Proxy.URL(), bundle)
	}
}

// Record is Obey with an agent that has kept a revision history for an hour.
func (w *World) Record(t *testing.T) {
	t.Helper()
	w.RecordSince(t, time.Now().Add(-time.Hour))
	w.Obey(t)
	obey := w.Cluster.AfterApply
	w.Cluster.AfterApply = func(c *Cluster) {
		obey(c)
		w.RecordSince(t, time.Now())
	}
}

// configured returns the certificate and the trust bundle that the spec selects.
func (w *World) configured(t *testing.T) (*certs.KeyPair, []byte) {
	t.Helper()
	tls, secret := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS, w.Cluster.TLSSecret
	if tls == nil || tls.SecretName == "" {
		return Serving(t, w.Generated, Loopback()), w.Generated.CertPEM()
	}
	if other, ok := w.Cluster.Others[tls.SecretName[strings.LastIndex(tls.SecretName, "/")+1:]]; ok {
		secret = other
	}
	bundle := secret.Data["ca.crt"]
	if data := tls.CertificateAuthorityData; data != "" {
		var err error
		if bundle, err = base64.StdEncoding.DecodeString(data); err != nil {
			t.Error(err)
		}
	}
	return &certs.KeyPair{CertPEM: secret.Data["tls.crt"], KeyPEM: secret.Data["tls.key"]}, bundle
}

// DualTrust simulates an agent that serves the old certificate and publishes both trust bundles while clients of
// revisions in use do not verify the new one.
func (w *World) DualTrust(t *testing.T) {
	t.Helper()
	c := w.Cluster
	oldPair := w.Proxy.pair.Load()
	oldBundle := w.published().Bundle
	w.RecordSince(t, time.Now().Add(-time.Hour))
	c.AfterApply = func(c *Cluster) {
		pair, bundle := w.configured(t)
		chain, _ := certs.ParseBundle(pair.CertPEM)
		history := must.Get(serving.Read(c.Revisions.Data))(t)
		judged := serving.Judge(serving.Effect(history, serving.Served{Chain: w.published().Chain},
			serving.Served{Chain: chain}, time.Now()))
		tls := c.Issuer.Spec.ImpersonationProxy.TLS
		c.Issuer.Status.Transition = nil
		if tls != nil && tls.CATransition == configv1alpha1.CATransitionDualTrust && judged.Refused {
			c.Issuer.Status.Transition = &configv1alpha1.TransitionStatus{
				Phase: configv1alpha1.TransitionPrepared, Since: metav1.Now(), SecretName: tls.SecretName,
				SHA256: certs.Fingerprint(chain[0].Raw),
			}
			for _, o := range judged.Broken {
				if all := &c.Issuer.Status.Transition.WaitsFor; !slices.Contains(*all, o.Revision.ID) {
					*all = append(*all, o.Revision.ID)
				}
			}
			pair, bundle = oldPair, certs.UnionBundle(oldBundle, bundle)
		} else {
			oldPair, oldBundle = pair, bundle
		}
		w.Proxy.Serve(t, pair)
		c.Report(w.Proxy.URL(), bundle)
		leaf, _ := certs.ParseBundle(pair.CertPEM)
		c.Issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
			SHA256: certs.Fingerprint(leaf[0].Raw), NotAfter: metav1.NewTime(leaf[0].NotAfter),
			Replicas: 1, ServingReplicas: 1,
		}
		w.RecordSince(t, time.Now())
	}
	c.AfterRevisions = c.AfterApply
}

// RecordSince adds what is currently published and presented to the agent's revision history, as of since.
func (w *World) RecordSince(t *testing.T, since time.Time) {
	t.Helper()
	c := w.Cluster
	if c.Issuer.Status.Objects == nil {
		c.Issuer.Status.Objects = &configv1alpha1.ObjectNames{
			Namespace: "pinniped-concierge", RevisionsConfigMap: "pinniped-concierge-revisions",
			GeneratedCASecret:              "pinniped-concierge-impersonation-proxy-ca-certificate",
			LastKnownGoodCertificateSecret: "pinniped-concierge-last-known-good",
		}
		c.Revisions = &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "pinniped-concierge", Name: "pinniped-concierge-revisions"},
			Data:       map[string]string{},
		}
	}
	history := must.Get(serving.Read(c.Revisions.Data))(t)
	history = must.Get(history.Append(w.published(), since, serving.DefaultRetention))(t)
	if current := history.Current(); current != nil { // it has clients
		history, _ = history.Used(current.ID, "", since)
	}
	c.Revisions.Data[serving.RevisionsKey] = string(history.Encode())
	c.Issuer.Status.Revisions = nil
	for _, state := range history.Revisions {
		c.Issuer.Status.Revisions = append(c.Issuer.Status.Revisions, configv1alpha1.RevisionStatus{
			ID: state.ID, Endpoint: state.Endpoint, Names: state.Names,
		})
	}
}

// published returns what is currently published and presented.
func (w *World) published() serving.Published {
	spec := w.Cluster.Issuer.Spec.ImpersonationProxy
	now := serving.Published{Change: serving.Change{
		Outcome: cmp.Or(w.Outcome, serving.OutcomeInService),
		Spec: &serving.RevisionSpec{
			TLS: spec.TLS, ExternalEndpoint: spec.ExternalEndpoint, LoadBalancerIP: spec.Service.LoadBalancerIP,
			ServiceType: spec.Service.Type,
		},
	}}
	if w.Cluster.Issuer.Status.Transition != nil {
		now.Change.Outcome = serving.OutcomePrepared
	}
	for _, strategy := range w.Cluster.Issuer.Status.Strategies {
		if strategy.Frontend != nil && strategy.Frontend.ImpersonationProxyInfo != nil {
			now.Endpoint = strategy.Frontend.ImpersonationProxyInfo.Endpoint
			now.Bundle, _ = base64.StdEncoding.DecodeString(strategy.Frontend.ImpersonationProxyInfo.CertificateAuthorityData)
		}
	}
	now.Chain, _ = certs.ParseBundle(w.Proxy.pair.Load().CertPEM)
	return now
}

// Judge simulates an agent that also validates certificates, with the code of the real one. It does not serve a refused
// certificate, and reports the finding.
func (w *World) Judge(t *testing.T) {
	t.Helper()
	w.Obey(t)
	obey := w.Cluster.AfterApply
	w.Cluster.AfterApply = func(c *Cluster) {
		spec := c.Issuer.Spec.ImpersonationProxy
		c.Issuer.Generation++
		defer func() { c.Issuer.Status.ObservedGeneration = c.Issuer.Generation }()
		if spec.TLS == nil {
			obey(c)
			return
		}
		name := types.NamespacedName{Namespace: "pinniped-concierge", Name: spec.TLS.SecretName}
		judged := serving.External(serving.ExternalInput{
			Name: name, Secret: c.TLSSecret, Spec: *spec.TLS, Endpoint: spec.ExternalEndpoint, Now: time.Now(),
		})
		if judged.Refusal == nil {
			obey(c)
			return
		}
		failed := FailedReport(configv1alpha1.ReasonErrorDuringSetup, judged.Refusal.Error())
		failed.Findings = []configv1alpha1.StrategyFinding{{
			Code: string(judged.Refusal.Finding.Code), Severity: configv1alpha1.FindingError, Message: "refused",
		}}
		c.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{failed}
		c.Bump()
	}
}

// Put adds a Secret with a certificate, its key and, unless it is empty, a CA bundle.
func (w *World) Put(name string, pair *certs.KeyPair, bundle []byte) {
	if w.Cluster.Others == nil {
		w.Cluster.Others = map[string]*corev1.Secret{}
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "pinniped-concierge", ResourceVersion: "7"},
		Type:       corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM},
	}
	if len(bundle) > 0 {
		secret.Data["ca.crt"] = bundle
	}
	w.Cluster.Others[name] = secret
}

// Served is Obey with an agent that also reacts to changes of the Secret.
func (w *World) Served(t *testing.T) {
	t.Helper()
	w.Obey(t)
	w.Cluster.AfterSecret = w.Cluster.AfterApply
}

// SecretHas checks that the Secret holds this pair.
func (w *World) SecretHas(t *testing.T, pair *certs.KeyPair) {
	t.Helper()
	if w.Cluster.TLSSecret == nil {
		t.Error("there is no Secret")
		return
	}
	data := w.Cluster.TLSSecret.Data
	want := []string{string(pair.CertPEM), string(pair.KeyPEM)}
	got := []string{string(data["tls.crt"]), string(data["tls.key"])}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the Secret (-want +got):\n%s", diff)
	}
}

// NewExternalWorld returns a world in which an external certificate is in service.
func NewExternalWorld(t *testing.T) *World {
	t.Helper()
	w := New(t)
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "proxy-tls"}
	w.Proxy.Serve(t, w.Pair)
	w.Cluster.Report(w.Proxy.URL(), w.CA.CertPEM())
	return w
}

// Share permits the agent to use a Secret of namespace shared, with a delegation to targets.
func (w *World) Share(secretName string, targets ...string) {
	w.Cluster.MayRead = true
	w.Cluster.Delegated = append(w.Cluster.Delegated, delegation.Delegation{
		Namespace: "shared", Name: "d", Entries: []delegation.Entry{{SecretName: secretName, Targets: targets}},
	})
}

// HasRead reports whether a Secret was read.
func (w *World) HasRead(name string) bool {
	return slices.Contains(w.Cluster.SecretsRead, name)
}
