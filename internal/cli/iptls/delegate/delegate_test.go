package delegate

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
)

func runDelegate(t *testing.T, w *iptlstest.World, change func(*Options)) *iptlstest.Run {
	t.Helper()
	r := &iptlstest.Run{}
	o := &Options{Session: sessiontest.New(w, r), Grant: Grant{Secret: "shared/proxy-tls"}, DryRun: session.DryRunNone}
	if change != nil {
		change(o)
	}
	return r.Do(t.Context(), o)
}

func TestDelegate(t *testing.T) {
	t.Parallel()
	offline := func(o *Options) {
		o.DryRun, o.Grant.To, o.Session.Connect = session.DryRunClient, "agents", nil // Connect must not be called
	}
	for _, tt := range []struct {
		name   string
		world  func(*iptlstest.World)
		change func(*Options)
		code   int
		says   []string
		grants int
	}{
		{
			name: "makes all three",
			says: []string{
				"role.rbac", "rolebinding.rbac", "tlscertificatedelegation.projectcontour.io",
				"pinniped ip-tls set --secret shared/proxy-tls",
			},
			grants: 3,
		},
		{name: "asks no cluster for a dry run", change: offline, says: []string{"proxy-tls-to-agents", "(client dry run)"}},
		{
			name: "lets the API server look", change: func(o *Options) { o.DryRun = session.DryRunServer },
			says: []string{"(server dry run)"},
		},
		{
			name:  "says how to get the kind",
			world: func(w *iptlstest.World) { w.Cluster.DelegationsErr = discovery.ErrNotFound }, code: 1,
			says: []string{"has no TLSCertificateDelegations", "deploy/tlscertificatedelegation"},
		},
		{
			name:  "goes on when it may not list",
			world: func(w *iptlstest.World) { w.Cluster.DelegationsErr = discovery.ErrForbidden }, grants: 3,
		},
		{
			name: "tells what is not permitted", world: func(w *iptlstest.World) { w.Cluster.GrantErr = discovery.ErrForbidden },
			code: 4, says: []string{"role.rbac.authorization.k8s.io/proxy-tls-to-pinniped-concierge"}, grants: 1,
		},
		{
			name:  "tells that there is no such namespace",
			world: func(w *iptlstest.World) { w.Cluster.GrantErr = discovery.ErrNotFound }, code: 1,
			says: []string{`is there a namespace "shared"?`}, grants: 1,
		},
		{
			name: "needs nothing in the agent's namespace", change: func(o *Options) { o.Grant.Secret = "pinniped-concierge/x" },
			code: 2, says: []string{"needs no delegation"},
		},
		{
			name: "wants a namespace", change: func(o *Options) { o.Grant.Secret = "proxy-tls" }, code: 2,
			says: []string{"write NAMESPACE/NAME"},
		},
		{name: "wants a name", change: func(o *Options) { o.Grant.Secret = "shared/" }, code: 2, says: []string{"cannot be " +
			"the name of a Secret"}},
		{name: "wants one namespace", change: func(o *Options) { o.Grant.To = "*" }, code: 2, says: []string{"--to"}},
		{name: "wants a known dry run", change: func(o *Options) { o.DryRun = "yes" }, code: 2, says: []string{"--dry-run"}},
		{
			name: "revokes what is not there", change: func(o *Options) { o.Revoke = true }, says: []string{"nothing to remove"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			if tt.world != nil {
				tt.world(w)
			}
			r := runDelegate(t, w, tt.change)
			r.Check(t, tt.code, tt.says...)
			if len(w.Cluster.Grants) != tt.grants {
				t.Errorf("%d objects were made, want %d: %v", len(w.Cluster.Grants), tt.grants, w.Cluster.Grants)
			}
			if w.HasRead("shared/proxy-tls") {
				t.Error("it has read the Secret")
			}
		})
	}
}

func TestDelegatePrintsWhatItMakes(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	printed := runDelegate(t, w, func(o *Options) {
		o.DryRun, o.Grant.To, o.Grant.ServiceAccount, o.Session.Output, o.Session.Connect = session.DryRunClient, "agents", "agent", "yaml", nil
	})
	want, err := delegation.YAML(
		delegation.Grant{
			Secret:         types.NamespacedName{Namespace: "shared", Name: "proxy-tls"},
			Namespace:      "agents",
			ServiceAccount: "agent",
		}.Objects(),
	)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), printed.Out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	printed = runDelegate(t, w, func(o *Options) { o.Session.Output = "json" })
	var list struct {
		Kind  string
		Items []map[string]any
	}
	if err := json.Unmarshal(printed.Out.Bytes(), &list); err != nil || list.Kind != "List" || len(list.Items) != 3 {
		t.Errorf("got %v, %s", err, printed.Out.String())
	}
	subjects := list.Items[1]["subjects"].([]any)[0].(map[string]any)
	if subjects["name"] != "pinniped-concierge" || subjects["namespace"] != "pinniped-concierge" {
		t.Errorf("the subject is %v", subjects)
	}
}

// TestDelegateReadsTheServiceAccount delegates to an agent whose CredentialIssuer has an unusual name.
func TestDelegateReadsTheServiceAccount(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Cluster.Issuer.Status.Objects = &configv1alpha1.ObjectNames{
		Namespace: "pinniped-concierge", ServiceAccount: "unusual-account",
	}
	printed := runDelegate(t, w, func(o *Options) { o.Session.Output = "yaml" })
	if !strings.Contains(printed.Out.String(), "name: unusual-account") {
		t.Errorf("it does not delegate to the published account:\n%s", printed.Out.String())
	}
}

func TestDelegateAgain(t *testing.T) {
	t.Parallel()
	const role, binding = "role.rbac.authorization.k8s.io/proxy-tls-to-pinniped-concierge in namespace shared ", "rolebinding.rbac.authorization.k8s.io/proxy-tls-to-pinniped-concierge in namespace shared "
	w := iptlstest.New(t)
	runDelegate(t, w, nil).Check(t, 0, role+"applied\n", binding+"applied\n")
	runDelegate(t, w, nil).Check(t, 0, role+"unchanged\n", binding+"unchanged\n")
	for key, object := range w.Cluster.Grants {
		if strings.HasPrefix(key, "Role ") {
			object["rules"] = []any{}
		}
	}
	runDelegate(t, w, nil).Check(t, 0, role+"applied\n", binding+"unchanged\n")
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	runDelegate(t, w, nil).Check(t, 0)
	for _, dryRun := range []string{session.DryRunClient, session.DryRunServer} {
		runDelegate(t, w, func(o *Options) { o.Revoke, o.DryRun = true, dryRun }).Check(t, 0, "removed ("+dryRun+" dry run)")
	}
	if len(w.Cluster.Grants) != 3 {
		t.Fatal("a dry run removed something")
	}
	for key, object := range w.Cluster.Grants {
		if strings.HasPrefix(key, "Role ") {
			object["metadata"].(map[string]any)["labels"] = map[string]any{}
		}
	}
	w.Share("proxy-tls", "*")
	runDelegate(t, w, func(o *Options) { o.Revoke = true }).Check(t, 0,
		"was not created by this command", `TLSCertificateDelegation "shared/d" still delegates`,
		"tlscertificatedelegation.projectcontour.io/proxy-tls-to-pinniped-concierge in namespace shared removed")
	if len(w.Cluster.Grants) != 1 {
		t.Errorf("what is left is %v", w.Cluster.Grants)
	}
}

// TestRevokeOfWhatIsServed revokes the delegation of the Secret that the agent serves.
func TestRevokeOfWhatIsServed(t *testing.T) {
	t.Parallel()
	served := func(t *testing.T) *iptlstest.World {
		t.Helper()
		w := iptlstest.NewExternalWorld(t)
		w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.SecretName = "shared/proxy-tls"
		w.RecordSince(t, time.Now().Add(-40*24*time.Hour))
		runDelegate(t, w, nil).Check(t, 0)
		return w
	}
	revoke := func(o *Options) { o.Revoke = true }
	for _, tt := range []struct {
		name   string
		world  func(*testing.T, *iptlstest.World)
		change func(*Options)
		code   int
		says   []string
		left   int
	}{
		{
			name: "is refused, as it locks clients out", change: revoke, code: 3, left: 3,
			says: []string{
				"OldClientsBreak", "every kubeconfig in use stops working", "uses this Secret", "nothing was changed",
				"--allow OldClientsBreak", "does not cover proxy.example.com",
			},
		},
		{
			name:   "is refused in a dry run, too",
			change: func(o *Options) { o.Revoke, o.DryRun = true, session.DryRunClient }, code: 3, left: 3,
		},
		{
			name: "is allowed", change: func(o *Options) { o.Revoke, o.Allow = true, []string{"OldClientsBreak"} },
			says: []string{"OldClientsBreak", "uses this Secret", "removed"},
		},
		{
			name: "is done for another Secret", change: revoke,
			world: func(_ *testing.T, w *iptlstest.World) {
				w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.SecretName = "shared/another"
			},
		},
		{
			name: "is done where all clients know the agent's CA as well", change: revoke, says: []string{"uses this Secret"},
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				w.Cluster.Revisions.Data = map[string]string{}
				names := iptlstest.Loopback()
				names.DNSNames = nil // like the generated certificate
				w.Proxy.Serve(t, iptlstest.Serving(t, w.CA, names))
				w.Cluster.Report(w.Proxy.URL(), append(w.CA.CertPEM(), w.Generated.CertPEM()...))
				w.RecordSince(t, time.Now().Add(-time.Hour))
			},
		},
		{
			name: "is done by an owner who may not look", change: revoke,
			world: func(_ *testing.T, w *iptlstest.World) { w.Cluster.IssuerErr = &discovery.ForbiddenError{Verb: "get"} },
			says:  []string{"Cannot tell whether the agent serves this Secret"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := served(t)
			if tt.world != nil {
				tt.world(t, w)
			}
			runDelegate(t, w, tt.change).Check(t, tt.code, tt.says...)
			if len(w.Cluster.Grants) != tt.left {
				t.Errorf("%d objects are left, want %d", len(w.Cluster.Grants), tt.left)
			}
		})
	}
}
