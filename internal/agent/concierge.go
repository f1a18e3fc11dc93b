package agent

import (
	"context"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/pinniped-toolkit/pinniped/internal/concierge"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
)

// newConcierge creates the server of the aggregated APIs, and retries while the API server is unavailable. It returns
// nil when ctx ends first.
func (a *agent) newConcierge(ctx context.Context, listener net.Listener, ready func() error) *concierge.Server {
	if err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		certificate, _ := a.apiCertificate.CertKeyPEM()
		return len(certificate) > 0, nil // until then no client could connect
	}); err != nil {
		return nil
	}
	var clusterSigner concierge.ClusterSigner
	if a.clusterSigner != nil {
		clusterSigner = a.clusterSigner
	}
	var server *concierge.Server
	retry(ctx, "Failed to start the Concierge APIs", func(context.Context) (err error) {
		server, err = concierge.New(ctx, concierge.Options{
			Listener:                   listener,
			ServingCertificate:         a.apiCertificate,
			Agent:                      a.rest,
			GroupSuffix:                a.config.APIGroupSuffix,
			DisableAdmissionPlugins:    a.config.AggregatedAPIServerDisableAdmissionPlugins,
			Authenticator:              a.authenticators,
			Issuer:                     a.signer,
			ClusterSigner:              clusterSigner,
			Logins:                     a.logins,
			Port:                       a.apiPort,
			UserTokens:                 a.userTokens,
			CredentialLife:             parsed(a.config.CredentialLifetime),
			Ready:                      ready,
			ShutdownDelay:              parsed(a.config.ShutdownDelay),
			AuditLogUsernamesAndGroups: a.config.Audit.LogUsernamesAndGroups == "enabled",
		})
		return err
	})
	return server
}

// signerBundle returns a function that returns the signer's CA bundle, or nil while there is no signer.
func signerBundle(from *signer.Signer) func() []byte {
	return func() []byte {
		if generation := from.Current(); generation != nil {
			return generation.Bundle()
		}
		return nil
	}
}
