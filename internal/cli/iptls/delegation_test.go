package iptls

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// share permits the agent to use a Secret of namespace shared.
func (w *world) share(secretName string, targets ...string) {
	w.cluster.mayRead = true
	w.cluster.delegations = append(w.cluster.delegations, delegation.Delegation{
		Namespace: "shared", Name: "d", Entries: []delegation.Entry{{SecretName: secretName, Targets: targets}},
	})
}

// hasRead says whether a Secret was read.
func (w *world) hasRead(name string) bool {
	for _, read := range w.cluster.secretsRead {
		if read == name {
			return true
		}
	}
	return false
}

func TestSetOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	const secret = "shared/proxy-tls"
	for _, tt := range []struct {
		name   string
		world  func(*world)
		change func(*SetOptions)
		code   int
		says   []string
		read   bool
	}{
		{
			name: "sets what is permitted", world: func(w *world) { w.share("proxy-tls", "pinniped-concierge") },
			says: []string{"configured", `Read Secret "proxy-tls" in namespace "shared"`, "presents the certificate"}, read: true,
		},
		{name: "sets what everybody may use", world: func(w *world) { w.share("proxy-tls", "*") }, says: []string{"configured"}, read: true},
		{
			name: "refuses what is not delegated", code: 3,
			says: []string{"SecretNotPermitted", `"pinniped ip-tls explain shared/proxy-tls"`, "nothing was changed"},
		},
		{name: "refuses what is delegated to others", world: func(w *world) { w.share("proxy-tls", "other") }, code: 3, says: []string{"SecretNotPermitted"}},
		{name: "refuses when another Secret is delegated", world: func(w *world) { w.share("other", "*") }, code: 3, says: []string{"SecretNotPermitted"}},
		{
			name: "refuses where nothing can be delegated", code: 3, says: []string{"SecretNotPermitted", "has no TLSCertificateDelegations"},
			world: func(w *world) { w.cluster.delegationsErr = fmt.Errorf("x: %w", discovery.ErrNotFound) },
		},
		{
			name: "refuses what RBAC forbids to the agent", code: 3, says: []string{"SecretNotPermitted", "RBAC does not let"},
			world: func(w *world) { w.share("proxy-tls", "*"); w.cluster.mayRead = false },
		},
		{
			name: "says that it could not ask about RBAC", says: []string{"configured", "you may not ask whether RBAC"}, read: true,
			world: func(w *world) { w.share("proxy-tls", "*"); w.cluster.mayReadErr = discovery.ErrForbidden },
		},
		{
			name: "does not go on when it may not look at delegations", code: 4, says: []string{"finding out whether"},
			world: func(w *world) { w.cluster.delegationsErr = discovery.ErrForbidden },
		},
		{
			name: "does not go on when asking about RBAC fails", code: 1, says: []string{"no review today"},
			world: func(w *world) { w.share("proxy-tls", "*"); w.cluster.mayReadErr = errors.New("no review today") },
		},
		{
			name: "writes no files there", code: 2, says: []string{"cannot be written", "let its owner write it"},
			world:  func(w *world) { w.share("proxy-tls", "*") },
			change: func(o *SetOptions) { o.files = &keyPair{} },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.obey(t)
			if tt.world != nil {
				tt.world(w)
			}
			r := &run{}
			o := w.options(r)
			o.Secret = secret
			if err := errors.Join(o.Validate(), o.Complete()); err != nil {
				t.Fatal(err)
			}
			if tt.change != nil {
				tt.change(o)
			}
			r.err = o.Run(t.Context())
			r.check(t, tt.code, tt.says...)
			if got := w.hasRead(secret); got != tt.read {
				t.Errorf("the Secret was read: %v, want %v", got, tt.read)
			}
			switch tls := w.cluster.issuer.Spec.ImpersonationProxy.TLS; {
			case tt.code == 0 && (tls == nil || tls.SecretName != secret):
				t.Errorf("the tls block is %+v", tls)
			case tt.code != 0 && tls != nil:
				t.Errorf("it changed the tls block: %+v", tls)
			}
			for _, reviewed := range w.cluster.reviewed {
				if want := "pinniped-concierge/pinniped-concierge shared/proxy-tls"; reviewed != want {
					t.Errorf("it asked about %q, not %q", reviewed, want)
				}
			}
		})
	}
}

// TestNoOracle shows that without permission everything is the same whether or not the Secret exists.
func TestNoOracle(t *testing.T) {
	t.Parallel()
	var outputs []string
	for _, exists := range []bool{true, false} {
		w := newWorld(t)
		if !exists {
			w.cluster.secret = nil
		}
		r := w.set(t.Context(), func(o *SetOptions) { o.Secret = "shared/proxy-tls" })
		c, _ := w.check(t, func(o *CheckOptions) { o.Secret, o.Output = "shared/proxy-tls", "text" })
		outputs = append(outputs, fmt.Sprint(r.out.String(), r.errOut.String(), r.err, ui.HintOf(r.err), c.out.String(), c.errOut.String(), c.err))
	}
	if diff := cmp.Diff(outputs[0], outputs[1]); diff != "" || !strings.Contains(outputs[0], "SecretNotPermitted") {
		t.Errorf("with the Secret and without (-with +without):\n%s\n%s", diff, outputs[0])
	}
}

func TestCheckOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.share("proxy-tls", "pinniped-concierge")
	w.cluster.issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "shared/proxy-tls"}
	r, result := w.check(t, nil)
	r.check(t, 0)
	if len(result.Subjects) != 1 || result.Subjects[0].Name != "Secret shared/proxy-tls" || !result.OK {
		t.Errorf("the result is %+v", result)
	}
	w.cluster.mayRead = false
	r, result = w.check(t, nil)
	r.check(t, 3, "SecretNotPermitted")
	if result.OK {
		t.Error("it is said to be good")
	}
}

func (w *world) delegate(t *testing.T, change func(*DelegateOptions)) *run {
	t.Helper()
	r := &run{}
	o := &DelegateOptions{Shared: Shared{Connection: w.connection(r), Secret: "shared/proxy-tls"}, DryRun: dryRunNone}
	if change != nil {
		change(o)
	}
	return r.do(t.Context(), o)
}

func TestDelegate(t *testing.T) {
	t.Parallel()
	offline := func(o *DelegateOptions) {
		o.DryRun, o.To, o.Connect = dryRunClient, "agents", nil // which would panic
	}
	for _, tt := range []struct {
		name   string
		world  func(*world)
		change func(*DelegateOptions)
		code   int
		says   []string
		grants int
	}{
		{name: "makes all three", says: []string{"role.rbac", "rolebinding.rbac", "tlscertificatedelegation.projectcontour.io", "pinniped ip-tls set --secret shared/proxy-tls"}, grants: 3},
		{name: "asks no cluster for a dry run", change: offline, says: []string{"proxy-tls-to-agents", "(client dry run)"}},
		{name: "lets the API server look", change: func(o *DelegateOptions) { o.DryRun = dryRunServer }, says: []string{"(server dry run)"}},
		{name: "says how to get the kind", world: func(w *world) { w.cluster.delegationsErr = discovery.ErrNotFound }, code: 1, says: []string{"has no TLSCertificateDelegations", "deploy/tlscertificatedelegation"}},
		{name: "goes on when it may not list", world: func(w *world) { w.cluster.delegationsErr = discovery.ErrForbidden }, grants: 3},
		{name: "tells what is not permitted", world: func(w *world) { w.cluster.grantErr = discovery.ErrForbidden }, code: 4, says: []string{"role.rbac.authorization.k8s.io/proxy-tls-to-pinniped-concierge"}, grants: 1},
		{name: "tells that there is no such namespace", world: func(w *world) { w.cluster.grantErr = discovery.ErrNotFound }, code: 1, says: []string{`is there a namespace "shared"?`}, grants: 1},
		{name: "needs nothing in the agent's namespace", change: func(o *DelegateOptions) { o.Secret = "pinniped-concierge/x" }, code: 2, says: []string{"needs no delegation"}},
		{name: "wants a namespace", change: func(o *DelegateOptions) { o.Secret = "proxy-tls" }, code: 2, says: []string{"write NAMESPACE/NAME"}},
		{name: "wants a name", change: func(o *DelegateOptions) { o.Secret = "shared/" }, code: 2, says: []string{"cannot be the name of a Secret"}},
		{name: "wants one namespace", change: func(o *DelegateOptions) { o.To = "*" }, code: 2, says: []string{"--to"}},
		{name: "wants a known dry run", change: func(o *DelegateOptions) { o.DryRun = "yes" }, code: 2, says: []string{"--dry-run"}},
		{name: "revokes what is not there", change: func(o *DelegateOptions) { o.Revoke = true }, says: []string{"nothing to remove"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tt.world != nil {
				tt.world(w)
			}
			r := w.delegate(t, tt.change)
			r.check(t, tt.code, tt.says...)
			if len(w.cluster.grants) != tt.grants {
				t.Errorf("%d objects were made, want %d: %v", len(w.cluster.grants), tt.grants, w.cluster.grants)
			}
			if w.hasRead("shared/proxy-tls") {
				t.Error("it has read the Secret")
			}
		})
	}
}

func TestDelegatePrintsWhatItMakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	printed := w.delegate(t, func(o *DelegateOptions) {
		o.DryRun, o.To, o.ServiceAccount, o.Output, o.Connect = dryRunClient, "agents", "agent", "yaml", nil
	})
	want, err := delegation.YAML(delegation.Grant{Secret: types.NamespacedName{Namespace: "shared", Name: "proxy-tls"}, Namespace: "agents", ServiceAccount: "agent"}.Objects())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), printed.out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	printed = w.delegate(t, func(o *DelegateOptions) { o.Output = "json" })
	var list struct {
		Kind  string
		Items []map[string]any
	}
	if err := json.Unmarshal(printed.out.Bytes(), &list); err != nil || list.Kind != "List" || len(list.Items) != 3 {
		t.Errorf("got %v, %s", err, printed.out.String())
	}
	subjects := list.Items[1]["subjects"].([]any)[0].(map[string]any)
	if subjects["name"] != "pinniped-concierge" || subjects["namespace"] != "pinniped-concierge" {
		t.Errorf("the subject is %v", subjects)
	}
}

func TestDelegateAgain(t *testing.T) {
	t.Parallel()
	const role, binding = "role.rbac.authorization.k8s.io/proxy-tls-to-pinniped-concierge in namespace shared ", "rolebinding.rbac.authorization.k8s.io/proxy-tls-to-pinniped-concierge in namespace shared "
	w := newWorld(t)
	w.delegate(t, nil).check(t, 0, role+"applied\n", binding+"applied\n")
	w.delegate(t, nil).check(t, 0, role+"unchanged\n", binding+"unchanged\n")
	for key, object := range w.cluster.grants {
		if strings.HasPrefix(key, "Role ") {
			object["rules"] = []any{}
		}
	}
	w.delegate(t, nil).check(t, 0, role+"applied\n", binding+"unchanged\n")
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.delegate(t, nil).check(t, 0)
	for _, dryRun := range []string{dryRunClient, dryRunServer} {
		w.delegate(t, func(o *DelegateOptions) { o.Revoke, o.DryRun = true, dryRun }).check(t, 0, "removed ("+dryRun+" dry run)")
	}
	if len(w.cluster.grants) != 3 {
		t.Fatal("a dry run removed something")
	}
	for key, object := range w.cluster.grants {
		if strings.HasPrefix(key, "Role ") {
			object["metadata"].(map[string]any)["labels"] = map[string]any{}
		}
	}
	w.share("proxy-tls", "*")
	w.delegate(t, func(o *DelegateOptions) { o.Revoke = true }).check(t, 0,
		"is not of this command", `TLSCertificateDelegation "shared/d" still delegates`, "tlscertificatedelegation.projectcontour.io/proxy-tls-to-pinniped-concierge in namespace shared removed")
	if len(w.cluster.grants) != 1 {
		t.Errorf("what is left is %v", w.cluster.grants)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	missing := func(w *world) { w.cluster.secret = nil }
	for _, tt := range []struct {
		name    string
		secret  string
		world   func(*world)
		code    int
		outcome delegation.Outcome
		answers string // of delegation, rbac, secret
		says    []string
	}{
		{name: "explains a permission", world: func(w *world) { w.share("proxy-tls", "*") }, outcome: delegation.Permitted, answers: "yes yes yes", says: []string{`TLSCertificateDelegation \"shared/d\" names it`}},
		{name: "explains a permission without the Secret", world: func(w *world) { w.share("proxy-tls", "*"); missing(w) }, outcome: delegation.Permitted, answers: "yes yes no", says: []string{"does not exist"}},
		{name: "explains that nothing is there", code: 3, outcome: delegation.NotDelegated, answers: "no no yes", says: []string{"kind: TLSCertificateDelegation"}},
		{name: "shows a forgotten namespace", world: func(w *world) { w.share("proxy-tls", "other") }, code: 3, outcome: delegation.NotDelegated, answers: "no yes yes", says: []string{"NamespaceNotListed"}},
		{name: "shows a delegation elsewhere", code: 3, outcome: delegation.NotDelegated, answers: "no no yes", says: []string{"DelegationElsewhere"}, world: func(w *world) {
			w.cluster.delegations = []delegation.Delegation{{Namespace: "pinniped-concierge", Name: "d", Entries: []delegation.Entry{{SecretName: "proxy-tls", Targets: []string{"*"}}}}}
		}},
		{name: "names RBAC as the cause", world: func(w *world) { w.share("proxy-tls", "*"); w.cluster.mayRead = false }, code: 3, outcome: delegation.NotReadable, answers: "yes no yes", says: []string{"kind: RoleBinding"}},
		{name: "names the missing kind", world: func(w *world) { w.cluster.delegationsErr = discovery.ErrNotFound }, code: 3, outcome: delegation.NoDelegations, answers: "no no yes", says: []string{"deploy/tlscertificatedelegation"}},
		{name: "says what it may not look at", world: func(w *world) { w.share("proxy-tls", "*"); w.cluster.mayReadErr = discovery.ErrForbidden }, code: 4, answers: "yes unknown yes", says: []string{"SubjectAccessReview"}},
		{name: "says no although it may not look at all", world: func(w *world) { w.cluster.mayReadErr = discovery.ErrForbidden }, code: 3, outcome: delegation.NotDelegated, answers: "no unknown yes"},
		{name: "says no to RBAC although delegations are unknown", world: func(w *world) { w.cluster.delegationsErr = discovery.ErrForbidden }, code: 3, outcome: delegation.NotReadable, answers: "unknown no yes"},
		{name: "needs nothing in the agent's namespace", secret: "pinniped-concierge/proxy-tls", outcome: delegation.Permitted, answers: "yes yes"},
		{name: "wants a namespace", secret: "proxy-tls", code: 2, says: []string{"write NAMESPACE/NAME"}},
		{name: "fails when it cannot look", world: func(w *world) { w.cluster.delegationsErr = discovery.ErrUnreachable }, code: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tt.world != nil {
				tt.world(w)
			}
			for _, format := range explainFormats() {
				r := &run{}
				o := &ExplainOptions{Shared: Shared{Connection: w.connection(r), Secret: orElse(tt.secret, "shared/proxy-tls")}}
				o.Output = format
				r.do(t.Context(), o)
				if format == "text" || format == "table" {
					r.check(t, tt.code)
					continue
				}
				if format == "json" {
					r.check(t, tt.code, tt.says...)
				}
				if tt.answers == "" {
					continue
				}
				var got Explanation
				if err := yaml.Unmarshal(r.out.Bytes(), &got); err != nil { // JSON is YAML, too
					t.Fatal(err)
				}
				var answers []string
				for _, check := range got.Checks {
					answers = append(answers, check.Answer)
				}
				if strings.Join(answers, " ") != tt.answers || got.Outcome != tt.outcome {
					t.Errorf("%s: the answers are %v, %s; want %s, %s", format, answers, got.Outcome, tt.answers, tt.outcome)
				}
				if (got.Manifest == "") != (got.Permitted == answerYes) {
					t.Errorf("permitted is %s, with the manifest %q", got.Permitted, got.Manifest)
				}
			}
		})
	}
}

// TestApplyOfAnotherNamespace shows that a plan with such a Secret can be applied, unless the permission has gone since.
func TestApplyOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	for _, permitted := range []bool{true, false} {
		w := newWorld(t)
		w.obey(t)
		w.share("proxy-tls", "*")
		plan := w.planned(t, func(o *SetOptions) { o.Secret = "shared/proxy-tls" })
		if permitted {
			w.apply(t, plan, nil).check(t, 0, "configured")
			continue
		}
		w.cluster.delegations = nil
		w.apply(t, plan, nil).check(t, 3, "SecretNotPermitted")
	}
}

// TestRotateToAnotherNamespace shows that the permission is asked for at each step.
func TestRotateToAnotherNamespace(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	shared := func(o *RotateOptions) { o.Secret = "shared/next-tls" }
	w.rotate(t, shared).check(t, 3, "SecretNotPermitted")
	w.share("next-tls", "pinniped-concierge")
	w.rotate(t, shared).check(t, 6, "it is not time for step 3 yet")
	permitted := w.cluster.delegations
	w.cluster.delegations, w.cluster.secretsRead = nil, nil
	w.rotate(t, shared).check(t, 3, "SecretNotPermitted")
	if w.hasRead("shared/next-tls") {
		t.Error("the Secret was read without permission")
	}
	w.cluster.delegations = permitted
	w.rotate(t, func(o *RotateOptions) { o.Secret, o.Continue = "shared/next-tls", true }).check(t, 0)
	if got := w.cluster.issuer.Spec.ImpersonationProxy.TLS.SecretName; got != "shared/next-tls" {
		t.Errorf("the Secret is %q", got)
	}
}
