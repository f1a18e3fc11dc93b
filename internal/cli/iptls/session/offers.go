package session

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// offers lists the fields of the cluster's CredentialIssuers, which differ between agents.
type offers struct {
	tls          bool // spec.impersonationProxy.tls
	verification bool // not in Pinniped's
	transition   bool // spec.impersonationProxy.tls.caTransition
	source       bool // spec.impersonationProxy.tls.certificateAuthorityDataSource
}

// offered reads the fields from the API once. If the cluster does not publish them, it assumes our agent.
func (s *Session) offered(ctx context.Context) offers {
	if s.offers == nil {
		all := offers{tls: true, verification: true, transition: true, source: true}
		if fields, err := s.Cluster.TLSFields(ctx); err == nil {
			all = offers{
				tls: len(fields) > 0, verification: slices.Contains(fields, "verification"),
				transition: slices.Contains(fields, "caTransition"),
				source:     slices.Contains(fields, "certificateAuthorityDataSource"),
			}
		}
		s.offers = &all
	}
	return *s.offers
}

// errNoTLS returns the error for an agent without spec.impersonationProxy.tls.
func errNoTLS(issuer string) error {
	return ui.WithExitCode(ui.WithHint(
		fmt.Errorf("the agent of CredentialIssuer %q accepts no certificate: its API has no field "+
			"spec.impersonationProxy.tls", issuer),
		"the agent is Pinniped before version 0.23, or the CustomResourceDefinitions are older than the agent; in the "+
			"second case, apply those of the agent's version"), ui.ExitRefused)
}

// errNoSource returns the error for an agent without certificateAuthorityDataSource, such as Pinniped's.
func errNoSource(issuer string) error {
	return ui.WithExitCode(ui.WithHint(
		fmt.Errorf("the agent of CredentialIssuer %q cannot read a CA bundle from another object: its API has no field "+
			"spec.impersonationProxy.tls.certificateAuthorityDataSource", issuer),
		"pass the CA bundle as a file: --ca-bundle FILE"), ui.ExitRefused)
}

// ownNamespaceOnly returns the finding for a Secret of another namespace, for an agent that does not support it, such
// as Pinniped's.
func ownNamespaceOnly(secret types.NamespacedName, namespace string) []certs.Finding {
	refused := certs.NewFinding(certs.SecretNotPermitted, fmt.Sprintf("Secret %q is in another namespace, but this "+
		"agent uses only Secrets in its own namespace %q: its API has no field spec.impersonationProxy.tls.verification, "+
		"so it is Pinniped's agent, or older than Secret sharing",
		secret, namespace))
	refused.Hint = fmt.Sprintf("put the certificate into a Secret in namespace %q, for example with --cert and --key",
		namespace)
	return []certs.Finding{refused}
}
