package credentialissuer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const decideDay = 24 * time.Hour

var decideNoon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// world is the input of the cases of TestDecide.
type world struct {
	ca, leaf, signer    *issuedcert.State
	generated, external *serving.Certificate
}

func newWorld(t *testing.T) world {
	t.Helper()
	made := func(state *issuedcert.State) *issuedcert.State {
		return must.Get(state.Repair(state.Verdict(), nil))(t)
	}
	var w world
	w.signer = made(issuedcert.Inspect(signerPolicy(), nil, decideNoon))
	w.ca = made(issuedcert.Inspect(serving.GeneratedCA(), nil, decideNoon))
	names := certs.SANs{DNSNames: []string{"proxy.example.com"}}
	w.leaf = made(issuedcert.InspectUnder(w.ca.CA, serving.GeneratedServing(names), nil, decideNoon))
	w.generated = serving.FromGenerated(w.leaf, types.NamespacedName{Namespace: "ns", Name: testNames.TLSSecret})
	elsewhere := made(issuedcert.InspectUnder(w.signer.CA, serving.GeneratedServing(names), nil, decideNoon))
	w.external = &serving.Certificate{
		Certificate: *elsewhere.Certificate, Source: serving.SourceExternal,
		Secret: types.NamespacedName{Namespace: "ns", Name: "external"},
	}
	return w
}

// everything returns what a leader observes if all of its Secrets are valid and nothing is served yet.
func (w world) everything() observed {
	s := observed{
		namespace: "ns", names: testNames, leads: true, now: decideNoon.Add(decideDay), retention: serving.DefaultRetention,
		secrets: map[string]ownSecret{}, known: map[string]*issuedcert.State{},
		revisions: func() (serving.History, bool) { return serving.History{}, true },
	}
	s.put(testNames.SignerSecret, w.signer.Data())
	s.put(testNames.CASecret, w.ca.Data())
	s.put(testNames.TLSSecret, w.leaf.Data())
	return s
}

func (s *observed) put(name string, data map[string][]byte) {
	s.secrets[name] = ownSecret{
		secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}, Data: data},
	}
}

// desired resolves a spec, which is enabled by default.
func desired(t *testing.T, proxy spec) serving.Desired {
	t.Helper()
	if proxy.Mode == "" {
		proxy.Mode = configv1alpha1.ImpersonationProxyModeEnabled
	}
	resolved := must.Get(serving.Resolve(&configv1alpha1.CredentialIssuer{
		Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &proxy},
	}, "ns"))(t)
	return resolved
}

func refusal(code certs.Code) serving.Evaluation {
	return serving.Evaluation{Refusal: &serving.Refusal{Finding: certs.NewFinding(code, "m")}}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const named, serveGenerated, serveExternal = "proxy.example.com", "serve generated ns/generated-tls", "serve external ns/external"
	tls := &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external"}
	delegated := *w.external
	delegated.Delegated, delegated.Secret.Namespace = true, "shared"
	copyOf := must.Get(serving.LastKnownGoodData(w.external))(t)
	unreadable := errors.New("the API server is away")
	signer := []string{"keep signer", "load signer"}
	renewed := []string{"keep generated-ca", "keep generated-tls"}
	lines := func(parts ...any) (all []string) {
		for _, part := range parts {
			switch part := part.(type) {
			case string:
				all = append(all, part)
			case []string:
				all = append(all, part...)
			}
		}
		return all
	}

	for _, test := range []struct {
		name string
		spec spec
		see  func(s *observed)
		want []string
		errs map[step]string
		idle bool
	}{
		{
			name: "makes everything on a fresh install", spec: spec{ExternalEndpoint: named},
			see: func(s *observed) { s.secrets = nil },
			want: []string{
				"write signer (CA Missing)", "load signer", "write generated-ca (CA Missing)",
				"write generated-tls (certificate Missing)", serveGenerated, "start proxy",
			},
		},
		{
			name: "serves a certificate with other names until the leader has made another", spec: spec{ExternalEndpoint: "new.example.com"},
			see:  func(s *observed) { s.leads = false },
			want: lines(signer, "keep generated-ca", serveGenerated, "start proxy"),
			errs: map[step]string{stepLoad: errNotLeader.Error()},
		},
		{
			name: "serves it until it has made another itself", spec: spec{ExternalEndpoint: "new.example.com"},
			want: lines(signer, "keep generated-ca", serveGenerated, "write generated-tls (certificate SANMismatch)",
				serveGenerated, "start proxy"),
		},
		{
			name: "waits for the leader on a fresh install", spec: spec{ExternalEndpoint: named},
			see:  func(s *observed) { s.secrets, s.leads = nil, false },
			errs: map[step]string{stepSigner: errNotLeader.Error(), stepLoad: errNotLeader.Error()},
		},
		{
			name: "serves what is there", spec: spec{ExternalEndpoint: named}, see: func(s *observed) { s.leads = false },
			want: lines(signer, renewed, serveGenerated, "start proxy"),
		},
		{
			name: "changes nothing that is in order", spec: spec{ExternalEndpoint: named}, see: func(s *observed) { s.serving = w.generated },
			want: lines(signer, renewed, "start proxy"),
		},
		{
			name: "renews an old certificate and signer, and uses the old ones until then", spec: spec{ExternalEndpoint: named},
			see: func(s *observed) { s.now = decideNoon.Add(250 * decideDay) },
			want: lines(signer, "write signer (CA Expiring)", "load signer", renewed, serveGenerated,
				"write generated-tls (certificate Expiring)", serveGenerated, "start proxy"),
		},
		{
			name: "leaves renewing to the leader", spec: spec{ExternalEndpoint: named},
			see:  func(s *observed) { s.now, s.leads, s.serving = decideNoon.Add(250*decideDay), false, w.generated },
			want: lines(signer, renewed, "start proxy"),
		},
		{
			name: "makes a certificate for another name", spec: spec{ExternalEndpoint: "other.example.com"},
			see: func(s *observed) {
				s.serving = w.generated
				s.known = map[string]*issuedcert.State{testNames.CASecret: w.ca, testNames.TLSSecret: w.leaf}
			},
			want: lines(signer, "keep generated-ca", "write generated-tls (certificate SANMismatch)", serveGenerated,
				"start proxy"),
		},
		{
			name: "puts a damaged CA back", spec: spec{ExternalEndpoint: named},
			see: func(s *observed) {
				s.put(testNames.CASecret, nil)
				s.known[testNames.CASecret] = w.ca
			},
			want: lines(signer, "restore generated-ca (CA Damaged)", "keep generated-tls", serveGenerated, "start proxy"),
		},
		{name: "waits for an address", spec: spec{Service: svc{Type: "LoadBalancer"}}, want: signer, idle: true},
		{
			name: "goes on serving when the address is lost", spec: spec{Service: svc{Type: "LoadBalancer"}},
			see: func(s *observed) { s.serving = w.generated }, want: lines(signer, "start proxy"),
		},
		{
			name: "serves while the signer cannot be read", spec: spec{ExternalEndpoint: named},
			see:  func(s *observed) { s.secrets[testNames.SignerSecret] = ownSecret{err: unreadable} },
			want: lines(renewed, serveGenerated, "start proxy"), errs: map[step]string{stepSigner: unreadable.Error()},
		},
		{
			name: "goes on serving while the CA cannot be read", spec: spec{ExternalEndpoint: named},
			see:  func(s *observed) { s.secrets[testNames.CASecret], s.serving = ownSecret{err: unreadable}, w.generated },
			want: lines(signer, "start proxy"), errs: map[step]string{stepLoad: unreadable.Error()},
		},
		{
			name: "removes the copy of an external certificate that is served no more", spec: spec{ExternalEndpoint: named},
			see:  func(s *observed) { s.put(testNames.LastKnownGoodSecret, copyOf) },
			want: lines(signer, renewed, serveGenerated, "start proxy", "remove last-known-good"),
		},

		// An external certificate.
		{
			name: "serves it, then keeps a copy and removes the generated one", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) { s.evaluation.Certificate, s.serving = w.external, w.generated },
			want: lines(signer, serveExternal, "start proxy", "copy to last-known-good", "keep generated-ca",
				"remove generated-tls"),
		},
		{
			name: "leaves writing to the leader", spec: spec{ExternalEndpoint: named, TLS: tls},
			see:  func(s *observed) { s.evaluation.Certificate, s.leads = w.external, false },
			want: lines(signer, serveExternal, "start proxy", "keep generated-ca"),
		},
		{
			name: "serves it without an address", spec: spec{Service: svc{Type: "LoadBalancer"}, TLS: tls},
			see: func(s *observed) {
				s.evaluation.Certificate = w.external
				s.put(testNames.LastKnownGoodSecret, copyOf)
				delete(s.secrets, testNames.TLSSecret)
			},
			want: lines(signer, serveExternal, "start proxy", "keep generated-ca"),
		},
		{
			name: "puts the generated CA back next to it, and makes none", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation.Certificate, s.serving = w.external, w.external
				s.put(testNames.LastKnownGoodSecret, copyOf)
				delete(s.secrets, testNames.CASecret)
				s.known[testNames.CASecret] = w.ca
			},
			want: lines(signer, "start proxy", "restore generated-ca (CA Missing)"),
		},
		{
			name: "generates nothing next to it", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation.Certificate, s.serving = w.external, w.external
				s.put(testNames.LastKnownGoodSecret, copyOf)
				delete(s.secrets, testNames.CASecret)
				delete(s.secrets, testNames.TLSSecret)
			},
			want: lines(signer, "start proxy"),
		},
		{
			name: "removes nothing while the copy cannot be kept", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation.Certificate, s.secrets[testNames.LastKnownGoodSecret] = w.external, ownSecret{err: unreadable}
			},
			want: lines(signer, serveExternal, "start proxy"), errs: map[step]string{stepTidy: unreadable.Error()},
		},
		{
			name: "does not remove the generated Secret that an admin named", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.put(testNames.LastKnownGoodSecret, copyOf)
				own := *w.external
				own.Secret = w.generated.Secret
				s.evaluation.Certificate = &own
			},
			want: lines(signer, "serve external ns/generated-tls", "start proxy", "copy to last-known-good", "keep generated-ca"),
		},
		{
			name: "keeps what is in service when it is refused", spec: spec{ExternalEndpoint: named, TLS: tls},
			see:  func(s *observed) { s.evaluation, s.serving = refusal(certs.KeyMismatch), w.generated },
			want: lines(signer, "start proxy"),
		},
		{
			name: "keeps what is in service while it cannot be read", spec: spec{ExternalEndpoint: named, TLS: tls},
			see:  func(s *observed) { s.evaluationErr, s.serving = unreadable, w.external },
			want: lines(signer, "start proxy"), errs: map[step]string{stepLoad: unreadable.Error()},
		},
		{
			name: "starts with the last known good one", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation = refusal(certs.KeyMismatch)
				s.put(testNames.LastKnownGoodSecret, copyOf)
			},
			want: lines(signer, serveExternal+" kept in last-known-good", "start proxy"),
		},
		{
			name: "starts with the generated one where there is no last known good one", spec: spec{ExternalEndpoint: named, TLS: tls},
			see:  func(s *observed) { s.evaluation = refusal(certs.SecretNotFound) },
			want: lines(signer, serveGenerated, "start proxy"),
		},
		{
			name: "starts with nothing where nothing good was ever there", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation = refusal(certs.SecretNotFound)
				delete(s.secrets, testNames.TLSSecret)
				s.put(testNames.LastKnownGoodSecret, map[string][]byte{"a": nil})
			},
			want: lines(signer, "report that the last known good certificate cannot be used"),
		},

		// A certificate in another namespace.
		{
			name: "keeps no copy of it", spec: spec{ExternalEndpoint: named, TLS: tls},
			see:  func(s *observed) { s.evaluation.Certificate = &delegated },
			want: lines(signer, "serve external shared/external", "start proxy", renewed),
		},
		{
			name: "makes the certificate that is to take its place", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation.Certificate, s.serving = &delegated, &delegated
				delete(s.secrets, testNames.TLSSecret)
			},
			want: lines(signer, "start proxy", "keep generated-ca", "write generated-tls (certificate Missing)"),
		},
		{
			name: "leaves that to the leader", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.leads, s.evaluation.Certificate, s.serving = false, &delegated, &delegated
				delete(s.secrets, testNames.TLSSecret)
			},
			want: lines(signer, "start proxy", "keep generated-ca"),
		},
		{
			name: "serves the generated one while it is not permitted", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation = refusal(certs.SecretNotPermitted)
				s.secrets = map[string]ownSecret{testNames.SignerSecret: s.secrets[testNames.SignerSecret]}
			},
			want: lines(
				signer, "write generated-ca (CA Missing)", "write generated-tls (certificate Missing)", serveGenerated,
				"start proxy",
			),
		},
		{
			name: "leaves another external one in service while it is not permitted", spec: spec{
				ExternalEndpoint: named, TLS: tls,
			},
			see: func(s *observed) {
				s.evaluation, s.serving = refusal(certs.SecretNotPermitted), w.external
				s.put(testNames.LastKnownGoodSecret, copyOf)
			},
			want: lines(signer, "start proxy"),
		},
		{
			name: "takes it out of service when its permission is gone", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation, s.serving = refusal(certs.SecretNotPermitted), &delegated
				s.withdrawn = s.evaluation.Refusal
			},
			want: lines(signer, renewed, serveGenerated+" instead of shared/external", "start proxy"),
		},
		{
			name: "needs no leader for that", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.leads, s.evaluation, s.serving = false, refusal(certs.SecretNotPermitted), &delegated
				s.withdrawn = s.evaluation.Refusal
			},
			want: lines(signer, renewed, serveGenerated+" instead of shared/external", "start proxy"),
		},
		{
			name: "keeps it while its permission is not known", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				s.evaluation, s.serving, s.withdrawnErr = refusal(certs.SecretNotFound), &delegated, unreadable
			},
			want: lines(signer, "start proxy"), errs: map[step]string{stepLoad: unreadable.Error()},
		},
		{
			name: "puts another one in its place whose permission is known", spec: spec{ExternalEndpoint: named, TLS: tls},
			see: func(s *observed) {
				another := delegated
				another.Secret.Name = "another"
				s.evaluation.Certificate, s.serving, s.withdrawn = &another, &delegated, refusal(certs.SecretNotPermitted).Refusal
				s.put(testNames.LastKnownGoodSecret, copyOf)
			},
			want: lines(signer, "serve external shared/another", "start proxy", "remove last-known-good", renewed),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := w.everything()
			if test.see != nil {
				test.see(&s)
			}
			d := decide(desired(t, test.spec), s)
			var got []string
			for _, a := range d.actions {
				got = append(got, a.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			for at := stepSigner; at <= stepTidy; at++ {
				switch err := d.errs[at]; {
				case err == nil && test.errs[at] == "":
				case err == nil || test.errs[at] == "" || !strings.Contains(err.Error(), test.errs[at]):
					t.Errorf("step %d: want error %q, got %v", at, test.errs[at], err)
				}
			}
			if idle := d.phase == phaseIdle; idle != test.idle {
				t.Errorf("idle: %v, want %v", idle, test.idle)
			}
		})
	}
}

// TestJudge shows to which certificate one that does not cover a name is compared.
func TestJudge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	copyOf := must.Get(serving.LastKnownGoodData(w.external))(t)
	pki := must.Get(certs.NewCA("pki", decideNoon, 100*decideDay))(t)
	names := certs.SANs{DNSNames: []string{"elsewhere.example.com"}}
	pair := must.Get(pki.IssueServing(names, decideNoon, 10*decideDay))(t)
	evaluation := serving.External(serving.ExternalInput{
		Name: types.NamespacedName{Namespace: "ns", Name: "external"},
		Secret: &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
			"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": pki.CertPEM(),
		}},
		Endpoint: "proxy.example.com", Now: decideNoon.Add(decideDay),
	})
	asked := desired(t, spec{
		ExternalEndpoint: "proxy.example.com", TLS: &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external"},
	})
	nothing := func(s *observed) { s.secrets = map[string]ownSecret{} }
	for _, test := range []struct {
		name    string
		see     func(s *observed)
		refused bool
	}{
		{"serves it where there is nothing else", nothing, false},
		{"keeps the one in service", func(s *observed) { nothing(s); s.serving = w.external }, true},
		{"keeps the generated one in service", func(s *observed) { nothing(s); s.serving = w.generated }, true},
		{"serves the last known good one after a restart", func(s *observed) { nothing(s); s.put(testNames.LastKnownGoodSecret, copyOf) }, true},
		{"serves the generated one after a restart", func(*observed) {}, true},
		{"serves it in the place of one that has to go", func(s *observed) {
			s.serving, s.withdrawn = w.external, refusal(certs.SecretNotPermitted).Refusal
		}, false},
	} {
		s := w.everything()
		s.evaluation = evaluation
		test.see(&s)
		if refused := decide(asked, s).evaluation.Refusal != nil; refused != test.refused {
			t.Errorf("it %s: refused %v, want %v", test.name, refused, test.refused)
		}
	}
}

func TestDecideOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	copyOf := must.Get(serving.LastKnownGoodData(w.external))(t)
	for _, test := range []struct {
		name  string
		see   func(s *observed)
		named string // by spec.tls
		want  []string
	}{
		{"removes the generated certificate", func(*observed) {}, "", []string{"stop proxy", "remove generated-tls"}},
		{
			"removes the copy", func(s *observed) { s.put(testNames.LastKnownGoodSecret, copyOf) }, "",
			[]string{"stop proxy", "remove generated-tls", "remove last-known-good"},
		},
		{"removes nothing that it did not make", func(s *observed) {
			s.put(testNames.TLSSecret, copyOf)
			s.put(testNames.LastKnownGoodSecret, w.leaf.Data())
		}, "", []string{"stop proxy"}},
		{"leaves writing to the leader", func(s *observed) { s.leads = false }, "", []string{"stop proxy"}},
		{"keeps what clients verify, for the time when it is switched on again", func(s *observed) {
			s.put(testNames.LastKnownGoodSecret, copyOf)
			used := serving.Revision{ID: "x", LastUsed: decideNoon}
			s.revisions = func() (serving.History, bool) {
				return serving.History{Revisions: []serving.Revision{used}}, true
			}
		}, "", []string{"stop proxy"}},
		{"keeps the generated certificate that the spec names", func(*observed) {}, testNames.TLSSecret, []string{"stop proxy"}},
		{
			"keeps the copy that the spec names", func(s *observed) { s.put(testNames.LastKnownGoodSecret, copyOf) },
			testNames.LastKnownGoodSecret,
			[]string{"stop proxy", "remove generated-tls"},
		},
	} {
		s := w.everything()
		test.see(&s)
		var off configv1alpha1.ImpersonationProxySpec
		if test.named != "" {
			off.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: test.named}
		}
		d := decideOff(desired(t, off), s)
		var got []string
		for _, a := range d.actions {
			got = append(got, a.String())
		}
		if diff := cmp.Diff(test.want, got); diff != "" || d.phase != phaseOff {
			t.Errorf("it %s: phase %d, actions (-want +got):\n%s", test.name, d.phase, diff)
		}
	}
}

// TestStrategy shows what is reported if actions fail.
func TestStrategy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failure := errors.New("it failed")
	at := spec{ExternalEndpoint: "proxy.example.com"}
	tls := spec{
		ExternalEndpoint: "proxy.example.com",
		TLS:              &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external"},
	}
	delegated := *w.external
	delegated.Delegated = true
	for _, test := range []struct {
		name       string
		spec       spec
		see        func(s *observed)
		serviceErr error
		failed     map[step]error
		serving    *serving.Certificate
		reason     configv1alpha1.StrategyReason
		message    string
		frontend   bool
		retries    bool
	}{
		{name: "listens", spec: at, serving: w.generated, reason: "Listening", message: messageListening, frontend: true},
		{
			name: "says why the proxy does not start", spec: at, serving: w.generated, failed: map[step]error{stepSwitch: failure},
			reason: "ErrorDuringSetup", message: "it failed", retries: true,
		},
		{
			name: "says what could not be written", spec: at, failed: map[step]error{stepLoad: failure},
			reason: "ErrorDuringSetup", message: "it failed", retries: true,
		},
		{
			name: "tells where clients get in meanwhile", spec: at, serving: w.generated, failed: map[step]error{stepLoad: failure},
			reason: "ErrorDuringSetup", message: "it failed; the certificate in Secret ns/generated-tls", frontend: true, retries: true,
		},
		{
			name: "tells of a Service that fails before it tells of the signer", spec: at, serving: w.generated, serviceErr: failure,
			failed: map[step]error{
				stepSigner: errors.New("another"),
			}, reason: "ErrorDuringSetup", message: "it failed; ", frontend: true, retries: true,
		},
		{
			name: "tells of the signer", spec: at, serving: w.generated, failed: map[step]error{stepSigner: failure},
			reason: "ErrorDuringSetup", message: "it failed; ", frontend: true, retries: true,
		},
		{
			name: "does not tell that a renewal failed", spec: at, serving: w.generated,
			failed: map[step]error{
				stepRenewSigner: failure, stepRenewCertificate: failure,
			}, reason: "Listening", message: messageListening, frontend: true,
		},
		{
			name: "tells of what could not be cleaned up", spec: at, serving: w.generated, failed: map[step]error{stepTidy: failure},
			reason: "ErrorDuringSetup", message: "it failed; ", frontend: true, retries: true,
		},
		{
			name: "tells that the address is waited for", spec: spec{Service: svc{Type: "LoadBalancer"}}, reason: "Pending",
			message: serving.ErrPending.Error(),
		},
		{
			name: "tells that a certificate is refused", spec: tls, serving: w.generated, see: func(s *observed) { s.evaluation = refusal(certs.KeyMismatch) },
			reason: "ErrorDuringSetup", message: "KeyMismatch: m", frontend: true,
		},
		{
			name: "publishes nothing whose permission is gone", spec: tls, serving: &delegated, failed: map[step]error{stepLoad: failure},
			see: func(s *observed) {
				s.evaluation, s.serving, s.withdrawn = refusal(certs.SecretNotPermitted), &delegated, refusal(certs.SecretNotPermitted).Refusal
			},
			reason: "ErrorDuringSetup", message: `replacing the certificate in Secret "ns/external": the use of this Secret is no longer permitted: it failed`, retries: true,
		},
		{
			name: "does not claim to listen with a certificate that was withdrawn just now", spec: tls,
			see:    func(s *observed) { s.evaluation.Certificate = &delegated },
			reason: "ErrorDuringSetup", message: serving.ErrNoCertificate.Error(),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := w.everything()
			if test.see != nil {
				test.see(&s)
			}
			done := result{
				decision:   decide(desired(t, test.spec), s),
				failed:     test.failed,
				serviceErr: test.serviceErr,
				serving:    test.serving,
				listens:    true,
			}
			got, err := done.strategy()
			if got.Reason != test.reason || !strings.HasPrefix(got.Message, test.message) {
				t.Errorf("got %s %q, want %s %q", got.Reason, got.Message, test.reason, test.message)
			}
			if (got.Frontend != nil) != test.frontend {
				t.Errorf("the frontend is %+v, want one: %v", got.Frontend, test.frontend)
			}
			if (err != nil) != test.retries {
				t.Errorf("the error to try again for is %v, want one: %v", err, test.retries)
			}
		})
	}
}
