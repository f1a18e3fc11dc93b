package check

import (
	"context"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
)

func runSet(ctx context.Context, w *iptlstest.World, secret string) *iptlstest.Run {
	return sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		certificate := session.CertificateFlags{
			Secret: secret, Allow: []string{"OldClientsBreak"}, Changed: iptlstest.Given(),
		}
		return &change.SetOptions{
			Session:     s,
			Flags:       change.Flags{DryRun: session.DryRunNone, Wait: true},
			Certificate: certificate,
		}
	})
}
