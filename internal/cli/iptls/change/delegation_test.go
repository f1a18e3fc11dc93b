package change

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestSetOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	const secret = "shared/proxy-tls"
	for _, tt := range []struct {
		name   string
		world  func(*iptlstest.World)
		change func(*SetOptions)
		code   int
		says   []string
		read   bool
	}{
		{
			name: "sets what is permitted", world: func(w *iptlstest.World) { w.Share("proxy-tls", "pinniped-concierge") },
			says: []string{
				"configured", `Read Secret "proxy-tls" in namespace "shared"`, "presents the certificate",
			}, read: true,
		},
		{
			name: "sets what everybody may use", world: func(w *iptlstest.World) { w.Share("proxy-tls", "*") },
			says: []string{"configured"}, read: true,
		},
		{
			name: "refuses what is not delegated", code: 3,
			says: []string{"SecretNotPermitted", `"pinniped explain shared/proxy-tls"`, "nothing was changed"},
		},
		{
			name: "refuses what is delegated to others", world: func(w *iptlstest.World) { w.Share("proxy-tls", "other") },
			code: 3, says: []string{"SecretNotPermitted"},
		},
		{
			name: "refuses when another Secret is delegated", world: func(w *iptlstest.World) { w.Share("other", "*") }, code: 3,
			says: []string{"SecretNotPermitted"},
		},
		{
			name: "refuses where nothing can be delegated", code: 3, says: []string{
				"SecretNotPermitted", "has no TLSCertificateDelegations",
			},
			world: func(w *iptlstest.World) { w.Cluster.DelegationsErr = fmt.Errorf("x: %w", discovery.ErrNotFound) },
		},
		{
			name: "refuses what RBAC forbids to the agent", code: 3, says: []string{"SecretNotPermitted", "RBAC does not let"},
			world: func(w *iptlstest.World) { w.Share("proxy-tls", "*"); w.Cluster.MayRead = false },
		},
		{
			name: "says that it could not ask about RBAC", says: []string{
				"configured", "not permitted to check whether RBAC",
			}, read: true,
			world: func(w *iptlstest.World) { w.Share("proxy-tls", "*"); w.Cluster.MayReadErr = discovery.ErrForbidden },
		},
		{
			name: "does not go on when it may not look at delegations", code: 4, says: []string{"checking whether"},
			world: func(w *iptlstest.World) { w.Cluster.DelegationsErr = discovery.ErrForbidden },
		},
		{
			name: "does not go on when asking about RBAC fails", code: 1, says: []string{"no review today"},
			world: func(w *iptlstest.World) {
				w.Share("proxy-tls", "*")
				w.Cluster.MayReadErr = errors.New("no review today")
			},
		},
		{
			name: "writes no files there", code: 2, says: []string{"cannot be written", "let the owner of that namespace write"},
			world:  func(w *iptlstest.World) { w.Share("proxy-tls", "*") },
			change: func(o *SetOptions) { o.files = &keyPair{} },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Obey(t)
			objects, _ := discovery.Objects(w.Cluster.Issuer, "pinniped-concierge")
			objects.ServiceAccount = "published"
			w.Cluster.Issuer.Status.Objects = &objects
			if tt.world != nil {
				tt.world(w)
			}
			r := &iptlstest.Run{}
			o := optionsFor(w, r)
			o.Certificate.Secret = secret
			must.Do(t, errors.Join(o.Validate(), o.Complete()))
			if tt.change != nil {
				tt.change(o)
			}
			r.Err = o.Run(t.Context())
			r.Check(t, tt.code, tt.says...)
			if got := w.HasRead(secret); got != tt.read {
				t.Errorf("the Secret was read: %v, want %v", got, tt.read)
			}
			switch tls := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS; {
			case tt.code == 0 && (tls == nil || tls.SecretName != secret):
				t.Errorf("the tls block is %+v", tls)
			case tt.code != 0 && tls != nil:
				t.Errorf("it changed the tls block: %+v", tls)
			}
			for _, reviewed := range w.Cluster.Reviewed {
				if want := "pinniped-concierge/published shared/proxy-tls"; reviewed != want {
					t.Errorf("it asked about %q, not %q", reviewed, want)
				}
			}
		})
	}
}
