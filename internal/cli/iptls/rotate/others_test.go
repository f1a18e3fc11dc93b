package rotate

import (
	"context"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session/sessiontest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/status"
)

// The other commands, as the tests of a rotation need them.

func flags() change.Flags { return change.Flags{DryRun: session.DryRunNone, Wait: true} }

// oldClientsMayBreak is the consent to a change of CA at once.
func oldClientsMayBreak() []string { return []string{"OldClientsBreak"} }

func runSet(ctx context.Context, w *iptlstest.World, secret string) *iptlstest.Run {
	return sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		certificate := session.CertificateFlags{Secret: secret, Allow: oldClientsMayBreak(), Changed: iptlstest.Given()}
		return &change.SetOptions{Session: s, Flags: flags(), Certificate: certificate}
	})
}

func runUnset(ctx context.Context, w *iptlstest.World) *iptlstest.Run {
	return sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		return &change.UnsetOptions{Session: s, Flags: flags(), Allow: oldClientsMayBreak()}
	})
}

func runUndo(ctx context.Context, w *iptlstest.World) *iptlstest.Run {
	return sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		return &change.UndoOptions{Session: s, Flags: flags(), Allow: oldClientsMayBreak()}
	})
}

func runStatus(ctx context.Context, w *iptlstest.World) *iptlstest.Run {
	return sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		return &status.Options{
			Session: s,
			Current: func(factory.ClusterFlags) (*factory.Cluster, error) {
				return &factory.Cluster{Raw: clientcmdapi.NewConfig()}, nil
			},
		}
	})
}

// specOf is the part of the configuration that the commands change.
func specOf(w *iptlstest.World) plan.Target {
	return plan.TargetOf(w.Cluster.Issuer.Spec.ImpersonationProxy)
}
