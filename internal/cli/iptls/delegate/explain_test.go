package delegate

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	missing := func(w *iptlstest.World) { w.Cluster.TLSSecret = nil }
	for _, tt := range []struct {
		name    string
		secret  string
		world   func(*iptlstest.World)
		code    int
		outcome delegation.Outcome
		answers string // of delegation, rbac, secret
		says    []string
	}{
		{
			name: "explains a permission", world: func(w *iptlstest.World) { w.Share("proxy-tls", "*") },
			outcome: delegation.Permitted, answers: "yes yes yes",
			says: []string{`TLSCertificateDelegation \"shared/d\" names the Secret`},
		},
		{
			name:  "explains a permission without the Secret",
			world: func(w *iptlstest.World) { w.Share("proxy-tls", "*"); missing(w) }, outcome: delegation.Permitted,
			answers: "yes yes no", says: []string{"does not exist"},
		},
		{
			name: "explains that nothing is there", code: 3, outcome: delegation.NotDelegated, answers: "no no yes",
			says: []string{"kind: TLSCertificateDelegation"},
		},
		{
			name: "shows a forgotten namespace", world: func(w *iptlstest.World) { w.Share("proxy-tls", "other") }, code: 3,
			outcome: delegation.NotDelegated, answers: "no yes yes", says: []string{"NamespaceNotListed"},
		},
		{name: "shows a delegation elsewhere", code: 3, outcome: delegation.NotDelegated, answers: "no no yes", says: []string{"DelegationElsewhere"}, world: func(w *iptlstest.World) {
			w.Cluster.Delegated = []delegation.Delegation{
				{
					Namespace: "pinniped-concierge", Name: "d",
					Entries: []delegation.Entry{{SecretName: "proxy-tls", Targets: []string{"*"}}},
				},
			}
		}},
		{
			name:  "names RBAC as the cause",
			world: func(w *iptlstest.World) { w.Share("proxy-tls", "*"); w.Cluster.MayRead = false }, code: 3,
			outcome: delegation.NotReadable, answers: "yes no yes", says: []string{"kind: RoleBinding"},
		},
		{
			name: "names the missing kind", world: func(w *iptlstest.World) { w.Cluster.DelegationsErr = discovery.ErrNotFound },
			code: 3, outcome: delegation.NoDelegations, answers: "no no yes", says: []string{"deploy/tlscertificatedelegation"},
		},
		{
			name:  "says what it may not look at",
			world: func(w *iptlstest.World) { w.Share("proxy-tls", "*"); w.Cluster.MayReadErr = discovery.ErrForbidden },
			code:  4, answers: "yes unknown yes", says: []string{"SubjectAccessReview"},
		},
		{
			name:  "says no although it may not look at all",
			world: func(w *iptlstest.World) { w.Cluster.MayReadErr = discovery.ErrForbidden }, code: 3,
			outcome: delegation.NotDelegated, answers: "no unknown yes",
		},
		{
			name:  "says no to RBAC although delegations are unknown",
			world: func(w *iptlstest.World) { w.Cluster.DelegationsErr = discovery.ErrForbidden }, code: 3,
			outcome: delegation.NotReadable, answers: "unknown no yes",
		},
		{
			name: "needs nothing in the agent's namespace", secret: "pinniped-concierge/proxy-tls",
			outcome: delegation.Permitted, answers: "yes yes",
		},
		{name: "wants a namespace", secret: "proxy-tls", code: 2, says: []string{"write NAMESPACE/NAME"}},
		{
			name:  "fails when it cannot look",
			world: func(w *iptlstest.World) { w.Cluster.DelegationsErr = discovery.ErrUnreachable }, code: 1,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			if tt.world != nil {
				tt.world(w)
			}
			for _, format := range factory.Formats() {
				r := &iptlstest.Run{}
				o := &ExplainOptions{
					Session: sessiontest.New(w, r),
					Grant:   Grant{Secret: iptlstest.OrElse(tt.secret, "shared/proxy-tls")},
				}
				o.Session.Output = format
				r.Do(t.Context(), o)
				if format == "text" {
					r.Check(t, tt.code)
					continue
				}
				if format == "json" {
					r.Check(t, tt.code, tt.says...)
				}
				if tt.answers == "" {
					continue
				}
				var got result.DelegationExplanation
				if err := yaml.Unmarshal(r.Out.Bytes(), &got); err != nil { // JSON is also YAML
					t.Fatal(err)
				}
				var answers []string
				for _, check := range got.Checks {
					answers = append(answers, string(check.Answer))
				}
				if strings.Join(answers, " ") != tt.answers || got.Reason != tt.outcome {
					t.Errorf("%s: the answers are %v, %s; want %s, %s", format, answers, got.Reason, tt.answers, tt.outcome)
				}
				if (got.Manifest == "") != (got.Permitted == result.AnswerYes) {
					t.Errorf("permitted is %s, with the manifest %q", got.Permitted, got.Manifest)
				}
			}
		})
	}
}

// TestExplainForeignText checks delegations and a Secret of another namespace with hostile text.
func TestExplainForeignText(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Share("proxy-tls", iptlstest.Hostile)
	w.Cluster.TLSSecret.Type = iptlstest.Hostile
	w.Cluster.Delegated = append(w.Cluster.Delegated, delegation.Delegation{
		Namespace: iptlstest.Hostile, Name: iptlstest.Hostile,
		Entries: []delegation.Entry{{SecretName: "proxy-tls", Targets: []string{iptlstest.Hostile}}},
	})
	r := &iptlstest.Run{}
	o := &ExplainOptions{Session: sessiontest.New(w, r), Grant: Grant{Secret: "shared/proxy-tls"}}
	o.Session.Output = "text"
	r.Do(t.Context(), o).Forges(t)
}
