package serving

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net"
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
	r.renewed("a")
	return r
}

func (r *replica) ca(name string) *certs.CA {
	r.t.Helper()
	if r.cas[name] == nil {
		r.cas[name] = must.Get(certs.NewCA(name, noon.Add(-100*day), 3650*day))(r.t)
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

// renews puts a certificate of this CA, and the CA, into the Secret. Without names, it has proxyName and otherName.
func (r *replica) renews(ca string, names ...string) {
	r.t.Helper()
	if len(names) == 0 {
		names = []string{proxyName, otherName}
	}
	pair := must.Get(r.ca(ca).IssueServing(certs.SANs{DNSNames: names}, r.now, 90*day))(r.t)
	r.secret = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "theirs"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": r.ca(ca).CertPEM()},
	}
}

// renewed renews the certificate, and the replica acts on it.
func (r *replica) renewed(ca string, names ...string) {
	r.t.Helper()
	r.renews(ca, names...)
	r.observes()
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
	data := must.Get(LastKnownGoodData(r.service))(r.t)
	r.service = must.Get(LastKnownGood(&corev1.Secret{Data: data}))(r.t)
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
		{"waits with another Secret with DualTrust", func(r *replica) {
			r.spec.CATransition = configv1alpha1.CATransitionDualTrust
			r.renews("b")
			r.secret.Name = "another"
		}, "a:ab", true},
		{"serves another Secret at once without it", func(r *replica) {
			r.renews("b")
			r.secret.Name = "another"
		}, "b:b", false},
		{"waits with a renewal whose bundle the spec named before", func(r *replica) {
			r.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.bundle("b"))
			r.renews("b")
		}, "a:ab", true},
		{"serves a renewal by the same CA", func(r *replica) { r.renews("a") }, "a:a", false},
		{"waits with one of another CA, and publishes both", func(r *replica) { r.renews("b") }, "a:ab", true},
		{"waits with one that lacks a name", func(r *replica) { r.renews("a", proxyName) }, "a:a", true},
		{"serves it where the spec says so", func(r *replica) {
			r.spec.CATransition = configv1alpha1.CATransitionImmediate
			r.renews("b")
		}, "b:b", false},
		{"keeps the trust bundle when ca.crt disappears", func(r *replica) {
			delete(r.secret.Data, "ca.crt")
		}, "a:a", false},
		{"keeps it also with a renewal that lacks it", func(r *replica) {
			r.renews("a")
			delete(r.secret.Data, "ca.crt")
		}, "a:a", false},
		{"uses the system roots where the spec has changed", func(r *replica) {
			r.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.bundle("a"))
			r.observes()
			r.spec.CertificateAuthorityData = ""
			delete(r.secret.Data, "ca.crt")
			r.observes()
		}, "a:", false},
		{"waits for clients that may trust less than what is published, where the history is not known", func(r *replica) {
			r.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.bundle("ab"))
			r.observes()
			r.history, r.forgets = History{}, true
			r.renews("b")
		}, "a:ab", true},
		{"refuses it where the history is full of revisions in use", func(r *replica) {
			for i := range MaxRevisions - 1 {
				published := Published{Endpoint: fmt.Sprintf("https://%d.example.com", i), Bundle: r.service.Bundle}
				r.history, _ = r.history.Append(published, r.now, DefaultRetention)
				r.history, _ = r.history.Used(r.history.Current().ID, "", r.now)
			}
			r.observes()
			r.renews("b")
		}, "a:a", false},
		{"forgets a renewal that is overtaken by another one", func(r *replica) {
			r.renewed("b")
			r.renews("c")
		}, "a:ac", true},
		{"goes back with the Secret", func(r *replica) {
			before := r.secret
			r.renewed("b")
			r.secret = before
		}, "a:a", false},
		{"serves a renewal by the CA that it had before", func(r *replica) {
			r.renewed("b")
			r.renews("a")
		}, "a:a", false},
		{"goes on after a restart", func(r *replica) { r.renewed("b"); r.restarts() }, "a:ab", true},
		{"goes on after a restart with a renewal in between", func(r *replica) {
			r.renewed("b")
			r.restarts()
			r.renews("c")
		}, "a:ac", true},
		{"waits until a day before the end of the one in service", func(r *replica) {
			r.renews("b")
			r.now = noon.Add(89*day - time.Second)
		}, "a:ab", true},
		{"serves it then", func(r *replica) { r.renewed("b"); r.now = noon.Add(89 * day) }, "b:b", false},
		{"serves it when everybody who would refuse it is retired", func(r *replica) {
			r.renewed("b")
			r.history.Revisions[0].Retired = r.now.Add(time.Second)
		}, "b:b", false},
		{"serves it when all of them are forgotten", func(r *replica) {
			r.renewed("b")
			r.history.Revisions = slices.Delete(r.history.Revisions, 0, 1)
		}, "b:b", false},
		{"waits for those who accept the one in service where nothing can be remembered", func(r *replica) {
			r.renews("b")
			r.history, r.forgets = History{}, true
		}, "a:ab", true},
		{"serves what the leading replica serves", func(r *replica) {
			r.renews("b")
			r.history.Chain, _ = certs.ParseBundle(r.secret.Data["tls.crt"])
		}, "b:b", false},
		{"serves it when the one in service lacks a name that clients use", func(r *replica) {
			r.renews("a", otherName)
			r.spec.Verification, r.service = configv1alpha1.VerificationWarn, nil
			r.observes()
			r.renews("b")
		}, "b:b", false},
		{"publishes what the spec says", func(r *replica) {
			r.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.bundle("abx"))
			r.renews("b")
		}, "a:abx", true},
		{"serves the content of another Secret", func(r *replica) {
			r.renews("b")
			r.secret.Name = "another"
		}, "b:b", false},
		{"loses nobody on the way back, however few they are", func(r *replica) {
			r.spec.CATransition = configv1alpha1.CATransitionImmediate
			r.renewed("b")
			r.spec.CATransition = ""
			r.renews("a")
		}, "b:ba", true},
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
	r.renewed("a", proxyName)
	r.renewed("b", proxyName)
	if r.waiting == nil || r.waiting.Until.After(ca.Certificate().NotAfter.Add(-transitionMargin)) {
		t.Fatalf("it waits: %+v", r.waiting)
	}
	r.now = r.waiting.Until
	r.observes()
	if got := r.serves(); got != "b:b" {
		t.Errorf("in service is %s", got)
	}
}

func sansOf(t *testing.T, names ...string) certs.SANs {
	t.Helper()
	var all certs.SANs
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			all.IPAddresses = append(all.IPAddresses, ip)
		} else {
			all.DNSNames = append(all.DNSNames, name)
		}
	}
	return all
}

// served returns a certificate that could be served instead, issued at this time.
func served(t *testing.T, names certs.SANs, at time.Time) *Certificate {
	t.Helper()
	ca := must.Get(certs.NewCA("test CA", noon.Add(-100*day), 3650*day))(t)
	pair := must.Get(ca.IssueServing(names, at, 10*day))(t)
	certificate := must.Get(keyPair(pair.CertPEM, pair.KeyPEM))(t)
	return &Certificate{Certificate: certificate, Source: SourceGenerated}
}

// TestUnless evaluates a certificate for proxy.example.com, while clients use another name, against alternatives.
func TestUnless(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	wrong := issue(t, ca, noon, 90*day)
	for _, test := range []struct {
		name         string
		verification configv1alpha1.TLSVerification
		instead      []string      // names of the alternative; nil if there is none
		issued       time.Duration // when the alternative was issued, relative to now
		refused      bool
	}{
		{"refuses it for one that covers all names", "", []string{"clients.example.com", "10.0.0.1"}, 0, true},
		{"serves it where there is nothing else", "", nil, 0, false},
		{"serves it where the other is no better", "", []string{"clients.example.com"}, 0, false},
		{"serves it where the other has expired", "", []string{"clients.example.com", "10.0.0.1"}, -20 * day, false},
		{"serves it where the other is not valid yet", "", []string{"clients.example.com", "10.0.0.1"}, day, false},
		{"serves it when told to", "Warn", []string{"clients.example.com", "10.0.0.1"}, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var instead *Certificate
			if test.instead != nil {
				instead = served(t, sansOf(t, test.instead...), noon.Add(test.issued))
			}
			got := Evaluate(External(ExternalInput{
				Secret: &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
					"tls.crt": wrong.CertPEM, "tls.key": wrong.KeyPEM, "ca.crt": ca.CertPEM(),
				}},
				Spec:     configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "cert", Verification: test.verification},
				Endpoint: "clients.example.com:8443",
				Names: []certs.Name{
					{Value: "10.0.0.1", Source: "Service"}, {Value: "lb.example.com", Source: "Service", Advisory: true},
				},
				Now: noon,
			}), Situation{InService: instead, Revisions: func() (History, bool) { return History{}, true }, Now: noon})
			if refused := got.Refusal != nil; refused != test.refused || refused == (got.Certificate != nil) {
				t.Fatalf("refused: %v, to be served: %v", got.Refusal, got.Certificate != nil)
			}
			if !test.refused {
				if len(got.Warnings) < 2 {
					t.Errorf("it does not warn: %v", got.Warnings)
				}
				return
			}
			if code := got.Refusal.Finding.Code; code != certs.NameNotCovered || !strings.Contains(got.Refusal.Error(), "Warn") {
				t.Errorf("refused as %s", got.Refusal)
			}
			told := len(got.Further)
			for _, warning := range got.Warnings {
				if warning.Message == got.Refusal.Finding.Message {
					t.Errorf("told twice: %s", warning.Message)
				}
			}
			if told != 1 {
				t.Errorf("the other name is not told: %v", got.Further)
			}
		})
	}
}

func TestUnlessLeavesARefusal(t *testing.T) {
	t.Parallel()
	missing := External(ExternalInput{Now: noon})
	got := Evaluate(missing, Situation{InService: served(t, sansOf(t, "a.example.com"), noon), Now: noon})
	if got.Refusal != missing.Refusal {
		t.Errorf("got %v", got.Refusal)
	}
}

// crowd models a replica with every client that ever used what it published.
type crowd struct {
	*replica
	random  *rand.Rand
	secrets map[string]*corev1.Secret
	clients []Client
	steps   []string
}

func (c *crowd) pick(from ...string) string { return from[c.random.IntN(len(from))] }

// step performs one random action of an administrator, GitOps, cert-manager, a node or time, and returns its name.
func (c *crowd) step() string {
	name, ca := c.pick("theirs", "another"), c.pick("a", "b", "c")
	switch what := c.pick("set", "set", "unset", "undo", "bundle", "renew", "renew", "time", "restart", "lost", "retire"); what {
	case "set": // by the CLI, or by kubectl
		c.spec = configv1alpha1.ImpersonationProxyTLSSpec{SecretName: name, CATransition: "DualTrust"}
		return "set " + name
	case "unset":
		c.spec = configv1alpha1.ImpersonationProxyTLSSpec{CATransition: configv1alpha1.CATransitionDualTrust}
		return what
	case "undo":
		to := c.history.Revisions[c.random.IntN(len(c.history.Revisions))]
		if to.Spec == nil {
			return "nothing"
		}
		c.spec = *to.Spec.TLS.DeepCopy()
		c.spec.CATransition = configv1alpha1.CATransitionDualTrust // as the CLI writes it
		return "undo to " + c.spec.SecretName
	case "bundle": // GitOps
		cas := c.pick("a", "b", "ab", "bc")
		c.spec.CertificateAuthorityData = base64.StdEncoding.EncodeToString(c.bundle(cas))
		return "bundle " + cas
	case "renew":
		names := []string{proxyName, otherName}[:1+c.random.IntN(2)]
		c.renews(ca, names...)
		c.secret.Name = name
		c.secrets[name] = c.secret
		return fmt.Sprintf("renew %s by %s for %v", name, ca, names)
	case "time":
		lasts := []time.Duration{time.Second, time.Hour, day, 9 * day}[c.random.IntN(4)]
		c.now = c.now.Add(lasts)
		return lasts.String()
	case "restart": // kill -9
		if KeepsLastKnownGood(c.service) {
			c.restarts()
		}
		return what
	case "lost": // the status restores the ConfigMap
		var summary []Revision
		for _, r := range c.history.Revisions {
			if !r.Ended() {
				summary = append(summary, Revision{
					ID: r.ID, Since: r.Since, Until: r.Until, Endpoint: r.Endpoint, Lost: r.Fingerprints(), Names: r.Names,
					LastUsed: r.LastUsed,
				})
			}
		}
		c.history, _ = History{}.Restore(summary, c.service.Bundle)
		return what
	default: // an administrator with a wrong clock who is right about the clients
		if c.waiting == nil {
			return "nothing"
		}
		data := map[string]string{RevisionsKey: string(c.history.Encode())}
		for _, id := range c.waiting.Broken.Revisions() {
			if r := c.history.Find(id); r != nil {
				key, value := r.Retirement(c.now.Add(240 * time.Hour))
				data[key] = value
				c.clients = slices.DeleteFunc(c.clients, func(client Client) bool {
					return slices.Equal(fingerprints(client.Bundle), r.Fingerprints())
				})
			}
		}
		c.history = must.Get(Read(data))(c.t)
		return what
	}
}

// reconcile does what the agent does.
func (c *crowd) reconcile() {
	if c.spec.SecretName != "" {
		if secret := c.secrets[c.spec.SecretName]; secret != nil {
			c.secret = secret
			c.observes()
		}
		return
	}
	pair := must.Get(c.ca("g").IssueServing(certs.SANs{DNSNames: []string{proxyName}}, c.now, 90*day))(c.t)
	generated := &Certificate{Source: SourceGenerated, Bundle: c.ca("g").CertPEM()}
	generated.Certificate = must.Get(keyPair(pair.CertPEM, pair.KeyPEM))(c.t)
	c.follow(Generated(generated, proxyName, nil))
}

// TestRandomSteps changes the certificate in 1,000 random steps without --allow: no client of a used revision stops
// verifying until the certificate that it verifies is about to expire.
func TestRandomSteps(t *testing.T) {
	t.Parallel()
	switches := 0
	for seed := range uint64(25) {
		c := &crowd{replica: newReplica(t), random: rand.New(rand.NewPCG(seed, 44)), secrets: map[string]*corev1.Secret{}}
		c.leads, c.secrets["theirs"] = true, c.secret
		c.spec = configv1alpha1.ImpersonationProxyTLSSpec{
			SecretName: "theirs", CATransition: configv1alpha1.CATransitionDualTrust,
		}
		for range 40 {
			c.steps = append(c.steps, c.step())
			before, ends := Served{Chain: c.service.Chain()}, c.service.transitionEnds(c.now)
			c.reconcile()
			after := Served{Chain: c.service.Chain()}
			c.steps = append(c.steps, c.serves())
			if !before.Chain[0].Equal(after.Chain[0]) {
				switches++
			}
			if c.now.Before(ends) {
				for _, client := range c.clients {
					if client.Meets(before, c.now) == "" && client.Meets(after, c.now) != "" {
						t.Fatalf("seed %d: %s: a client with %s for %s stops verifying: %s", seed, strings.Join(c.steps, ", "),
							Describe(client.Bundle), client.Name, client.Meets(after, c.now))
					}
				}
			} else {
				c.clients = nil
			}
			for _, name := range NamesOf(after.Chain) {
				c.clients = append(c.clients, Client{Name: name, Bundle: c.service.Bundle})
			}
		}
	}
	if switches < 50 {
		t.Errorf("only %d certificates were replaced", switches)
	}
}
