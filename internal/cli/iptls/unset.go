package iptls

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// UnsetOptions is everything `pinniped ip-tls unset` needs; a test fills it directly.
type UnsetOptions struct {
	Changing

	request request
}

func newUnsetCommand(f *factory.Factory) *cobra.Command {
	o := &UnsetOptions{Changing: Changing{Connection: connection(f)}}
	cmd := &cobra.Command{
		Use:   "unset",
		Short: "Go back to the certificate that the agent generates",
		Long: `Go back to the certificate that the agent generates: remove spec.impersonationProxy.tls from the CredentialIssuer, whoever set it.
The Secret stays, and so do the external endpoint and the rest of the configuration.

The agent's own CA takes the place of the CA bundle that is advertised now. Kubeconfigs that do not trust it stop working, and the
command says so before it changes anything (--dry-run changes nothing at all). Kubeconfigs from the time before "ip-tls set" work
again, as the agent keeps its CA.

Then the command waits until the agent reports that CA and every address of the endpoint presents a certificate which the CA
verifies. If that does not happen in time, the previous configuration is put back.

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage, 4 not permitted by the cluster, 5 did not take effect in time,
124 timed out before anything was changed, 130 interrupted.`,
		Example: `  # Who would have to get a new kubeconfig?
  pinniped ip-tls unset --dry-run --diff

  pinniped ip-tls unset

  # In a script
  pinniped ip-tls unset --timeout 5m -o json`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return execute(cmd.Context(), o)
		},
	}
	o.addFlags(cmd, f)
	return cmd
}

// Validate checks the flags before anything is read.
func (o *UnsetOptions) Validate() error { return o.validate() }

// Complete loads the kubeconfig.
func (o *UnsetOptions) Complete() error { return o.open() }

// Run looks, removes, waits and prints.
func (o *UnsetOptions) Run(ctx context.Context) error { return o.run(ctx, &o.request, o) }

// look reads the configuration and the CA that will be advertised.
func (o *UnsetOptions) look(ctx context.Context, _ bool) (*state, *plan, error) {
	issuer, err := readIssuer(ctx, o.cluster, o.CredentialIssuer)
	if err != nil {
		return nil, nil, err
	}
	st := &state{issuer: issuer, now: o.Now()}
	ca, err := o.generatedCA(ctx, o.request.namespace, st)
	if err != nil {
		return nil, nil, err
	}
	p := decideUnset(o.request, st, ca)
	o.say(st, p)
	return st, p, nil
}

// generatedCA returns the CA that the agent will serve with, as PEM; nil when that is not known.
func (c *Changing) generatedCA(ctx context.Context, namespace string, st *state) ([]byte, error) {
	name := appName(st.issuer) + "-impersonation-proxy-ca-certificate"
	secret, err := readSecret(ctx, c.cluster, namespace, name)
	if errors.Is(err, discovery.ErrForbidden) {
		c.progress.Info("Secret %q may not be read, so that the agent's CA is not known before it is advertised", name)
		return nil, nil
	}
	if err != nil {
		return nil, withCodes(fmt.Errorf("reading the Secret with the agent's CA: %w", err))
	}
	ca, todo := servingcert.PlanCA(secret, st.now)
	if todo.Needed() {
		return nil, nil // the agent will make a new one
	}
	return ca.CertPEM(), nil
}

// decideUnset says what has to change, and whom that locks out. ca is nil when it is not known.
func decideUnset(req request, st *state, ca []byte) *plan {
	wanted := *st.issuer.Spec.ImpersonationProxy
	wanted.TLS = nil
	return decideTarget(req, st, wanted, ca)
}

// oldClientsOfGenerated says whether kubeconfigs with the bundle that is advertised now stop working. That is a warning:
// it lies in what was asked for.
func oldClientsOfGenerated(old certs.Previous, ca []byte) (certs.Finding, bool) {
	if !old.Advertised {
		return certs.Finding{}, false
	}
	generated, _ := certs.ParseBundle(ca)
	members, _ := certs.ParseBundle(old.Bundle)
	if len(generated) > 0 && slices.ContainsFunc(members, generated[0].Equal) {
		return certs.Finding{}, false
	}
	who := "kubeconfigs without a CA bundle, which use their system roots,"
	if len(old.Bundle) > 0 {
		who = "kubeconfigs that trust " + describePEM(old.Bundle)
	}
	instead := "a CA that the agent makes itself"
	if len(generated) > 0 {
		instead = "the agent's own CA, " + describePEM(ca)
	}
	f := certs.NewFinding(certs.OldClientsBreak, fmt.Sprintf("%s stop working: the certificate will be of %s", who, instead))
	f.Severity, f.Hint = certs.SeverityWarning, "hand out new kubeconfigs afterwards: pinniped get kubeconfig"
	return f, true
}

// apply removes the block, whoever owns it.
func (o *UnsetOptions) apply(ctx context.Context, st *state, p *plan) (*configv1alpha1.CredentialIssuer, error) {
	return o.merge(ctx, st, p)
}

func (o *UnsetOptions) command() string { return "unset" }
