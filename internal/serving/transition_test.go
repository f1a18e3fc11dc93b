package serving

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const proxyName, otherName = "proxy.example.com", "other.example.com"

// replica models a replica during the renewals of one Secret: its certificate in service, and the published revisions.
type replica struct {
	t       *testing.T
	cas     map[string]*certs.CA
	now     time.Time
	spec    configv1alpha1.ImpersonationProxyTLSSpec
	secret  *corev1.Secret
	service *Certificate
	history History
	forgets bool // the history cannot be stored
	leads   bool
	waiting *Waiting
}

func newReplica(t *testing.T) *replica {
	t.Helper()
	r := &replica{t: t, cas: map[string]*certs.CA{}, now: noon}
	r.renews("a", proxyName, otherName)
	r.observes()
	return r
}

func (r *replica) ca(name string) *certs.CA {
	r.t.Helper()
	if r.cas[name] == nil {
		ca := must.Get(certs.NewCA(name, noon.Add(-100*day), 3650*day))(r.t)
		r.cas[name] = ca
	}
	return r.cas[name]
}

// bundle returns the CAs that these letters name.
func (r *replica) bundle(cas string) []byte {
	var all []byte
	for _, name := range strings.Split(cas, "") {
		all = append(all, r.ca(name).CertPEM()...)
	}
	return all
}

// renews puts a certificate of this CA, and the CA, into the Secret.
func (r *replica) renews(ca string, names ...string) {
	r.t.Helper()
	pair := must.Get(r.ca(ca).IssueServing(certs.SANs{DNSNames: names}, r.now, 90*day))(r.t)
	r.secret = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "theirs"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": r.ca(ca).CertPEM()},
	}
}

// observes evaluates the Secret and acts on the result.
func (r *replica) observes() {
	r.t.Helper()
	name := types.NamespacedName{Namespace: r.secret.Namespace, Name: r.secret.Name}
	r.follow(External(ExternalInput{Name: name, Secret: r.secret, Spec: r.spec, Endpoint: proxyName, Now: r.now}))
}

// follow acts on the evaluation of the requested certificate.
func (r *replica) follow(judged Evaluation) {
	r.t.Helper()
	judged = Evaluate(judged, Situation{
		InService: r.service,
		Revisions: func() (History, bool) { return r.history, !r.forgets },
		Endpoint:  "https://" + proxyName,
		TLS:       r.spec,
		Now:       r.now,
		Leads:     r.leads,
		Retention: DefaultRetention,
	})
	if judged.Certificate != nil {
		r.service = judged.Certificate
	}
	r.waiting = judged.Waiting
	told := Published{
		Endpoint: "https://" + proxyName, Bundle: r.service.Bundle, Chain: r.service.Chain(),
		Change: Change{Spec: &RevisionSpec{TLS: r.spec.DeepCopy()}},
	}
	history := must.Get(r.history.Append(told, r.now, DefaultRetention))(r.t)
	r.history, _ = history.Used(history.Current().ID, "", r.now)
	if r.forgets {
		r.history = History{}
	}
}

// restarts discards everything but the backup of the certificate in service and the published revisions.
func (r *replica) restarts() {
	r.t.Helper()
	data, err := LastKnownGoodData(r.service)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.service, err = LastKnownGood(&corev1.Secret{Data: data}); err != nil {
		r.t.Fatal(err)
	}
	r.service.Secret.Namespace = r.secret.Namespace
	r.waiting = nil
}

// serves returns the CA of the certificate in service and those that are published.
func (r *replica) serves() string {
	r.t.Helper()
	members, _ := certs.ParseBundle(r.service.Bundle)
	text := r.service.Certificate.Leaf.Issuer.CommonName + ":"
	for _, member := range members {
		text += member.Subject.CommonName
	}
	return text
}

// TestDualTrust performs renewals that would break clients.
func TestDualTrust(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		do   func(r *replica)
		want string // the CA of the certificate in service, and the CAs that are published
		wait bool
	}{
		{name: "waits with another Secret with DualTrust", do: func(r *replica) {
			r.spec.CATransition = configv1alpha1.CATransitionDualTrust
			r.renews("b", proxyName, otherName)
			r.secret.Name = "another"
		}, want: "a:ab", wait: true},
		{name: "serves another Secret at once without it", do: func(r *replica) {
			r.renews("b", proxyName, otherName)
			r.secret.Name = "another"
		}, want: "b:b"},
		{name: "waits with a renewal whose bundle the spec named before", do: func(r *replica) {
			r.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.bundle("b"))
			r.renews("b", proxyName, otherName)
		}, want: "a:ab", wait: true},
		{name: "serves a renewal by the same CA", do: func(r *replica) { r.renews("a", proxyName, otherName) }, want: "a:a"},
		{name: "waits with one of another CA, and publishes both", do: func(r *replica) { r.renews("b", proxyName, otherName) }, want: "a:ab", wait: true},
		{name: "waits with one that lacks a name", do: func(r *replica) { r.renews("a", proxyName) }, want: "a:a", wait: true},
		{
			name: "serves it where the spec says so",
			do: func(r *replica) {
				r.spec.CATransition = configv1alpha1.CATransitionImmediate
				r.renews("b", proxyName, otherName)
			},
			want: "b:b",
		},
		{
			name: "keeps the trust bundle when ca.crt disappears",
			do:   func(r *replica) { delete(r.secret.Data, "ca.crt") }, want: "a:a",
		},
		{
			name: "keeps it also with a renewal that lacks it", do: func(r *replica) {
				r.renews("a", proxyName, otherName)
				delete(r.secret.Data, "ca.crt")
			}, want: "a:a",
		},
		{
			name: "uses the system roots where the spec has changed", do: func(r *replica) {
				r.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.bundle("a"))
				r.observes()
				r.spec.CertificateAuthorityData = ""
				delete(r.secret.Data, "ca.crt")
				r.observes()
			}, want: "a:",
		},
		{
			name: "waits for clients that may trust less than what is published, where the history is not known",
			do: func(r *replica) {
				r.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.bundle("ab"))
				r.observes()
				r.history, r.forgets = History{}, true
				r.renews("b", proxyName, otherName)
			}, want: "a:ab", wait: true,
		},
		{
			name: "refuses it where the history is full of revisions in use", do: func(r *replica) {
				for i := range MaxRevisions - 1 {
					published := Published{Endpoint: fmt.Sprintf("https://%d.example.com", i), Bundle: r.service.Bundle}
					r.history, _ = r.history.Append(published, r.now, DefaultRetention)
					r.history, _ = r.history.Used(r.history.Current().ID, "", r.now)
				}
				r.observes()
				r.renews("b", proxyName, otherName)
			}, want: "a:a",
		},
		{
			name: "forgets a renewal that is overtaken by another one", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.observes()
				r.renews("c", proxyName, otherName)
			}, want: "a:ac", wait: true,
		},
		{
			name: "goes back with the Secret", do: func(r *replica) {
				before := r.secret
				r.renews("b", proxyName, otherName)
				r.observes()
				r.secret = before
			}, want: "a:a",
		},
		{
			name: "serves a renewal by the CA that it had before", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.observes()
				r.renews("a", proxyName, otherName)
			}, want: "a:a",
		},
		{
			name: "goes on after a restart", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.observes()
				r.restarts()
			}, want: "a:ab", wait: true,
		},
		{
			name: "goes on after a restart with a renewal in between", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.observes()
				r.restarts()
				r.renews("c", proxyName, otherName)
			}, want: "a:ac", wait: true,
		},
		{
			name: "waits until a day before the end of the one in service", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.now = noon.Add(89*day - time.Second)
			}, want: "a:ab", wait: true,
		},
		{
			name: "serves it then", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.observes()
				r.now = noon.Add(89 * day)
			}, want: "b:b",
		},
		{
			name: "serves it when everybody who would refuse it is retired", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.observes()
				r.history.Revisions[0].Retired = r.now.Add(time.Second)
			}, want: "b:b",
		},
		{
			name: "serves it when all of them are forgotten", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.observes()
				r.history.Revisions = slices.Delete(r.history.Revisions, 0, 1)
			}, want: "b:b",
		},
		{
			name: "waits for those who accept the one in service where nothing can be remembered", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.history, r.forgets = History{}, true
			}, want: "a:ab", wait: true,
		},
		{
			name: "serves what the leading replica serves", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.history.Chain, _ = certs.ParseBundle(r.secret.Data["tls.crt"])
			}, want: "b:b",
		},
		{
			name: "serves it when the one in service lacks a name that clients use", do: func(r *replica) {
				r.renews("a", otherName)
				r.spec.Verification, r.service = configv1alpha1.VerificationWarn, nil
				r.observes()
				r.renews("b", proxyName, otherName)
			}, want: "b:b",
		},
		{
			name: "publishes what the spec says", do: func(r *replica) {
				r.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.bundle("abx"))
				r.renews("b", proxyName, otherName)
			}, want: "a:abx", wait: true,
		},
		{
			name: "serves the content of another Secret", do: func(r *replica) {
				r.renews("b", proxyName, otherName)
				r.secret.Name = "another"
			}, want: "b:b",
		},
		{
			name: "loses nobody on the way back, however few they are", do: func(r *replica) {
				r.spec.CATransition = configv1alpha1.CATransitionImmediate
				r.renews("b", proxyName, otherName)
				r.observes()
				r.spec.CATransition = ""
				r.renews("a", proxyName, otherName)
			}, want: "b:ba", wait: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t)
			test.do(r)
			r.observes()
			for range 2 { // and it is stable
				if got := r.serves(); got != test.want || (r.waiting != nil) != test.wait {
					t.Fatalf("in service is %s, want %s; it waits: %v", got, test.want, r.waiting != nil)
				}
				r.observes()
			}
			if !test.wait {
				return
			}
			if until := noon.Add(89 * day); !r.waiting.Until.Equal(until) {
				t.Errorf("it waits until %s, want %s", r.waiting.Until, until)
			}
			message := r.waiting.Message("ns")
			for _, want := range []string{
				r.waiting.Certificate.SHA256(), r.waiting.Until.Format(time.RFC3339), `"pinniped ip-tls set --secret ` + r.secret.Name + ` --allow OldClientsBreak"`,
				"kubeconfigs made ",
			} {
				if !strings.Contains(message, want) {
					t.Errorf("the message lacks %q: %s", want, message)
				}
			}
		})
	}
}

// TestDualTrustEndsWithTheCA shows that a certificate is not served after its CA expires: the renewal of the CA is
// probably why there is a new certificate.
func TestDualTrustEndsWithTheCA(t *testing.T) {
	t.Parallel()
	r := &replica{t: t, cas: map[string]*certs.CA{}, now: noon}
	ca := must.Get(certs.NewCA("a", noon.Add(-100*day), 130*day))(t)
	r.cas["a"] = ca
	r.renews("a", proxyName)
	r.observes()
	r.renews("b", proxyName)
	r.observes()
	if r.waiting == nil || r.waiting.Until.After(ca.Certificate().NotAfter.Add(-transitionMargin)) {
		t.Fatalf("it waits: %+v", r.waiting)
	}
	r.now = r.waiting.Until
	r.observes()
	if got := r.serves(); got != "b:b" {
		t.Errorf("in service is %s", got)
	}
}
