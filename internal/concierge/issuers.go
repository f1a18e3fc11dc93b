package concierge

import (
	"context"
	"errors"
	"slices"
	"time"

	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/satoken"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// ClientCertificateIssuer issues client certificates that the impersonation proxy accepts. It returns an error when it
// is not ready.
type ClientCertificateIssuer interface {
	IssueClientCertificate(
		username string,
		groups, organizationalUnits []string,
		ttl time.Duration,
	) (*certs.KeyPair, error)
}

// ClusterSigner issues client certificates that the API server and the impersonation proxy accept. It is slower than a
// ClientCertificateIssuer, and returns an error when it is not available.
type ClusterSigner interface {
	IssueClientCertificate(
		ctx context.Context,
		identity certs.ClientIdentity,
		ttl time.Duration,
	) (*certs.KeyPair, error)
}

// UserTokens issues service account tokens. It returns satoken.ErrOff while the strategy is off.
type UserTokens interface {
	Issue(ctx context.Context, user satoken.Identity) (*satoken.Credential, error)
}

// Signers of certificates in the audit log.
const (
	signedByAgent   = "agent"
	signedByCluster = "cluster"
)

// issuers choose the issuer of a certificate.
type issuers struct {
	agent   ClientCertificateIssuer
	cluster ClusterSigner // nil for none
	tokens  UserTokens    // nil for none
	group   string        // the API group of TokenCredentialRequests
}

// issue returns a certificate and its signer. A client that logs in at the API server gets a certificate of the
// cluster's signer, which is valid there and at the proxy. When that signer is unavailable, the agent signs: its
// certificate is only valid at the proxy, and the client gets a warning. A client that logs in at the proxy always gets
// one of the agent.
func (i issuers) issue(
	ctx context.Context,
	identity certs.ClientIdentity,
	life time.Duration,
) (*certs.KeyPair, string, error) {
	var clusterErr error
	if i.cluster != nil && !i.atProxy(ctx) {
		pair, err := i.cluster.IssueClientCertificate(ctx, identity, life)
		if err == nil {
			return pair, signedByCluster, nil
		}
		if errors.Is(err, signer.ErrRefused) || ctx.Err() != nil {
			return nil, "", err
		}
		klog.FromContext(ctx).V(2).Info("Failed to get a certificate from the cluster's signer", "problem", err.Error())
		clusterErr = err
	}
	pair, err := i.agent.IssueClientCertificate(
		identity.Username,
		identity.Groups,
		identity.OrganizationalUnits,
		life,
	)
	if err != nil {
		return nil, "", errors.Join(clusterErr, err)
	}
	if clusterErr != nil {
		warning.AddWarning(ctx, "", "the cluster's own signer issues no certificates at the moment: this login works for "+
			"the impersonation proxy, not for the API server itself")
	}
	return pair, signedByAgent, nil
}

// atProxy reports whether the client logs in at the impersonation proxy of this installation.
func (i issuers) atProxy(ctx context.Context) bool {
	who, ok := genericapirequest.UserFrom(ctx)
	return ok && slices.Contains(who.GetExtra()[signer.AtProxyKey], i.group)
}
