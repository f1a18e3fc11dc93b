package delegation

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var wildcard = types.NamespacedName{Namespace: "shared", Name: "wildcard"}

const agent = "pinniped-concierge"

// parse parses delegations, each given as its namespace and the rest of the object as YAML.
func parse(t *testing.T, objects ...string) []Delegation {
	t.Helper()
	items := []any{}
	for _, text := range objects {
		var object map[string]any
		must.Do(t, yaml.Unmarshal([]byte(text), &object))
		items = append(items, object)
	}
	list := must.Get(json.Marshal(map[string]any{"items": items}))(t)
	return must.Get(ParseList(list))(t)
}

func in(namespace, spec string) string {
	return "metadata: {name: d, namespace: " + namespace + "}\nspec: " + spec + "\n"
}

// shared is a delegation with these entries in the Secret's namespace.
func shared(entries string) []string { return []string{in("shared", `{delegations: [`+entries+`]}`)} }

// to is a delegation of the Secret to these namespaces.
func to(namespaces string) []string {
	return shared(`{secretName: wildcard, targetNamespaces: ` + namespaces + `}`)
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		objects []string
		want    bool
		miss    NearMissKind
		text    string // of the near miss
	}{
		{name: "permits nothing without delegations"},
		{name: "permits the one namespace", objects: to(`[pinniped-concierge]`), want: true},
		{name: "permits one namespace of several", objects: to(`[a, pinniped-concierge, b]`), want: true},
		{name: "permits all namespaces", objects: to(`["*"]`), want: true},
		{
			name:    "permits a namespace that is listed next to an asterisk",
			objects: to(`["*", pinniped-concierge]`), want: true,
		},
		{
			name: "checks every entry",
			objects: shared(`{secretName: other, targetNamespaces: [x]}, {secretName: wildcard, targetNamespaces: [x]}, ` +
				`{secretName: wildcard, targetNamespaces: [pinniped-concierge]}`),
			want: true, miss: MissNamespace,
		},
		{name: "checks every delegation", objects: append(to(`[x]`), to(`["*"]`)...), want: true, miss: MissNamespace},
		{
			name:    "goes on behind a malformed entry",
			objects: shared(`7, {secretName: wildcard, targetNamespaces: ["*"]}`), want: true,
			miss: MissMalformed, text: "spec.delegations[0]",
		},
		{
			name:    "goes on behind a malformed object",
			objects: append([]string{in("shared", `[]`)}, to(`["*"]`)...), want: true, miss: MissMalformed,
		},

		{name: "does not take an asterisk next to others for all", objects: to(`["*", other]`), miss: MissAsteriskMixed},
		{name: "does not take two asterisks for all", objects: to(`["*", "*"]`), miss: MissAsteriskMixed},
		{name: "does not match patterns of namespaces", objects: to(`["pinniped-*"]`), miss: MissPattern},
		{
			name:    "does not match patterns of Secrets",
			objects: shared(`{secretName: "*", targetNamespaces: ["*"]}`), miss: MissSecretMisspelt,
		},
		{
			name:    "does not permit a forgotten namespace",
			objects: to(`[other]`), miss: MissNamespace, text: `"pinniped-concierge"`,
		},
		{name: "does not permit with an empty list", objects: to(`[]`), miss: MissNamespace, text: "empty"},
		{
			name: "does not permit without a list", objects: shared(`{secretName: wildcard}`),
			miss: MissMalformed, text: "targetNamespaces is not a list",
		},
		{name: "does not permit with no entries", objects: shared(``)},
		{
			name: "does not permit without spec", objects: []string{"metadata: {name: d, namespace: shared}"},
			miss: MissMalformed, text: "no spec",
		},
		{name: "does not take a text for a list of namespaces", objects: to(`"*"`), miss: MissMalformed},
		{
			name:    "does not take a text for a list of entries",
			objects: []string{in("shared", `{delegations: wildcard}`)}, miss: MissMalformed,
		},
		{name: "refuses a list with anything but names", objects: to(`[pinniped-concierge, 7]`), miss: MissMalformed},
		{
			name:    "refuses an empty Secret name",
			objects: shared(`{secretName: "", targetNamespaces: ["*"]}`), miss: MissMalformed,
		},
		{name: "minds the case of the namespace", objects: to(`[Pinniped-Concierge]`), miss: MissNamespaceCase},
		{name: "minds blanks around the namespace", objects: to(`["pinniped-concierge "]`), miss: MissNamespaceCase},
		{
			name:    "minds the case of the Secret",
			objects: shared(`{secretName: Wildcard, targetNamespaces: ["*"]}`), miss: MissSecretMisspelt,
		},
		{
			name:    "does not take NAMESPACE/NAME of the Secret",
			objects: shared(`{secretName: shared/wildcard, targetNamespaces: ["*"]}`), miss: MissSecretMisspelt,
		},
		{
			name:    "does not permit another Secret",
			objects: shared(`{secretName: wildcard-2, targetNamespaces: ["*"]}`), miss: MissOtherSecret, text: `"wildcard-2"`,
		},
		{
			name:    "minds the case of fields",
			objects: shared(`{SecretName: wildcard, TargetNamespaces: ["*"]}`), miss: MissMalformed,
		},
		{
			name:    "does not count a delegation of the agent's namespace",
			objects: []string{in(agent, `{delegations: [{secretName: wildcard, targetNamespaces: ["*"]}]}`)},
			miss:    MissOtherNamespace, text: `"shared"`,
		},
		{
			name: "does not count a delegation elsewhere that names the namespace",
			objects: []string{
				in(agent, `{delegations: [{secretName: shared/wildcard, targetNamespaces: [pinniped-concierge]}]}`),
			},
			miss: MissOtherNamespace,
		},
		{name: "says nothing about what has nothing to do with it", objects: []string{
			in("elsewhere", `{delegations: [{secretName: other, targetNamespaces: ["*"]}]}`),
			in("elsewhere", `{delegations: 7}`),
			in("shared", `{delegations: [{secretName: other, targetNamespaces: [x]}]}`),
		}},
		{name: "does not count what is being deleted", objects: []string{
			"metadata: {name: d, namespace: shared, deletionTimestamp: '2026-01-01T00:00:00Z'}\nspec: {delegations: " +
				"[{secretName: wildcard, targetNamespaces: ['*']}]}",
		}, miss: MissBeingDeleted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := Decide(wildcard, agent, parse(t, test.objects...))
			if got.Permitted != test.want {
				t.Errorf("permitted is %v, want %v", got.Permitted, test.want)
			}
			if want := (types.NamespacedName{Namespace: "shared", Name: "d"}); got.Permitted && got.By != want {
				t.Errorf("it is permitted by %s, want %s", got.By, want)
			}
			switch {
			case test.miss == "" && len(got.NearMisses) > 0:
				t.Errorf("near misses: %v", got.NearMisses)
			case test.miss != "" && (len(got.NearMisses) != 1 || got.NearMisses[0].Kind != test.miss || !strings.Contains(
				got.NearMisses[0].Message, test.text,
			)):
				t.Errorf("near misses are %v, want one of kind %s with %q", got.NearMisses, test.miss, test.text)
			}
		})
	}
}

func TestDecideForOddTargets(t *testing.T) {
	t.Parallel()
	all := parse(t, append(to(`["*"]`), to(`[""]`)...)...)
	for _, target := range []string{"", "*"} {
		if Decide(wildcard, target, all).Permitted {
			t.Errorf("it permits the namespace %q, which cannot be one", target)
		}
	}
}

func TestParseListRefusesWhatIsNoList(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "[]", `{"items": 7}`, `{"items": [7]}`} {
		if _, err := ParseList([]byte(text)); err == nil {
			t.Errorf("%q is taken for a list", text)
		}
	}
}

// FuzzDecide shows that no object, however malformed, permits what it does not name.
func FuzzDecide(f *testing.F) {
	f.Add(
		`{"metadata":{"namespace":"shared"},"spec":{"delegations":[{"secretName":"wildcard","targetNamespaces":["*"]}]}}`,
	)
	f.Add(`{"spec":{"delegations":[null,{"secretName":{}}]}}`)
	f.Fuzz(func(t *testing.T, object string) {
		all, err := ParseList([]byte(`{"items":[` + object + `]}`))
		if err != nil {
			return
		}
		if Decide(wildcard, agent, all).Permitted &&
			(!strings.Contains(object, "wildcard") && !strings.Contains(object, `\u`)) {
			t.Errorf("%s permits it", object)
		}
	})
}

func TestSecretName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]types.NamespacedName{
		"proxy-tls":                    {Namespace: agent, Name: "proxy-tls"},
		"shared/wildcard.example.com":  {Namespace: "shared", Name: "wildcard.example.com"},
		"pinniped-concierge/proxy-tls": {Namespace: agent, Name: "proxy-tls"},
	} {
		if got, err := SecretName(text, agent); err != nil || got != want {
			t.Errorf("%q: got %s, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"/", "a/", "/b", "a/b/c", "../b", "a/..", "A/b", "a.b/c", "a/B", "*/b", "a/*", "a /b", "a%2f/b",
	} {
		if got, err := SecretName(text, agent); err == nil {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}

// TestRefusal shows that the text says what to do and depends only on the names.
func TestRefusal(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for outcome, hint := range map[Outcome]string{
		NotDelegated: "pinniped explain shared/wildcard", NoDelegations: "pinniped explain shared/wildcard",
		NotReadable: "pinniped ip-tls delegate shared/wildcard --to pinniped-concierge", NotVisible: "deploy/concierge",
	} {
		got := Refusal(outcome, wildcard, agent)
		if got.Code != certs.SecretNotPermitted || !got.Refuses() || got.Pending || !strings.Contains(got.Hint, hint) {
			t.Errorf("%s: %+v", outcome, got)
		}
		if known[got.Message] {
			t.Errorf("%s: %q is said for two outcomes", outcome, got.Message)
		}
		known[got.Message] = true
	}
}

func TestGrant(t *testing.T) {
	t.Parallel()
	grant := Grant{Secret: wildcard, Namespace: agent, ServiceAccount: "agent"}
	text := must.Get(YAML(grant.Objects()))(t)
	const want = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  labels:
    app.kubernetes.io/managed-by: pinniped
  name: wildcard-to-pinniped-concierge
  namespace: shared
rules:
- apiGroups:
  - ""
  resourceNames:
  - wildcard
  resources:
  - secrets
  verbs:
  - get
  - list
  - watch
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  labels:
    app.kubernetes.io/managed-by: pinniped
  name: wildcard-to-pinniped-concierge
  namespace: shared
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: wildcard-to-pinniped-concierge
subjects:
- kind: ServiceAccount
  name: agent
  namespace: pinniped-concierge
---
apiVersion: projectcontour.io/v1
kind: TLSCertificateDelegation
metadata:
  labels:
    app.kubernetes.io/managed-by: pinniped
  name: wildcard-to-pinniped-concierge
  namespace: shared
spec:
  delegations:
  - secretName: wildcard
    targetNamespaces:
    - pinniped-concierge
`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	objects := grant.Objects()
	if !Decide(wildcard, agent, []Delegation{Parse(objects[len(objects)-1])}).Permitted {
		t.Error("what it makes does not permit it")
	}
}

func TestGrantName(t *testing.T) {
	t.Parallel()
	long := Grant{Secret: types.NamespacedName{Namespace: "shared", Name: strings.Repeat("a", 250)}, Namespace: agent}
	longer := Grant{Secret: types.NamespacedName{Namespace: "shared", Name: strings.Repeat("a", 251)}, Namespace: agent}
	if len(long.Name()) > 253 || long.Name() == longer.Name() {
		t.Errorf("names are %q and %q", long.Name(), longer.Name())
	}
}
