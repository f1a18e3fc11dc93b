package serving

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

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
		c.spec = configv1alpha1.ImpersonationProxyTLSSpec{
			SecretName:   name,
			CATransition: configv1alpha1.CATransitionDualTrust,
		}
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
		var err error
		if c.history, err = Read(data); err != nil {
			c.t.Fatal(err)
		}
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
	pair, err := c.ca("g").IssueServing(certs.SANs{DNSNames: []string{proxyName}}, c.now, 90*day)
	if err != nil {
		c.t.Fatal(err)
	}
	generated := &Certificate{Source: SourceGenerated, Bundle: c.ca("g").CertPEM()}
	if generated.Certificate, err = keyPair(pair.CertPEM, pair.KeyPEM); err != nil {
		c.t.Fatal(err)
	}
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
