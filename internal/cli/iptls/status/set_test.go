package status

import (
	"context"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
)

// runSet configures and serves the world's certificate.
func runSet(ctx context.Context, w *iptlstest.World, adapt func(*change.SetOptions), changed ...string) *iptlstest.Run {
	return sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		o := &change.SetOptions{
			Session: s,
			Flags:   change.Flags{DryRun: session.DryRunNone, Wait: true},
			Certificate: session.CertificateFlags{
				Secret: "proxy-tls", Allow: []string{"OldClientsBreak"}, Changed: iptlstest.Given(changed...),
			},
		}
		if adapt != nil {
			adapt(o)
		}
		return o
	})
}
