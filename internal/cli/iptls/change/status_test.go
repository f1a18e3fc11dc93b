package change

import (
	"context"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/status"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
)

func runStatus(ctx context.Context, w *iptlstest.World, network session.Network) *iptlstest.Run {
	return sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		s.Network = network
		return &status.Options{
			Session: s,
			Current: func(factory.ClusterFlags) (*factory.Cluster, error) {
				return &factory.Cluster{Raw: clientcmdapi.NewConfig()}, nil
			},
		}
	})
}
