package delegate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Grant identifies a permission: a Secret of another namespace, and the agent that may use it.
type Grant struct {
	Secret         string // NAMESPACE/NAME
	To             string // the agent's namespace
	ServiceAccount string

	secret types.NamespacedName
}

func (g *Grant) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&g.To, "to", "", "the agent's namespace (default: the value of --namespace)")
	flags.StringVar(
		&g.ServiceAccount,
		"service-account",
		"",
		"the agent's service account (default: the one in the status of the CredentialIssuer, else the default name, "+
			discovery.DefaultAppName+")",
	)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"to": cobra.NoFileCompletions, "service-account": cobra.NoFileCompletions,
	})
}

// oneSecret is the cobra.Command.Args of a command with one Secret.
func oneSecret(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return ui.WithHint(ui.Usage(errors.New("NAMESPACE/NAME of the Secret is missing")), "run %q",
			cmd.CommandPath()+" --help")
	case 1:
		return nil
	default:
		return factory.NoArgs(cmd, args[1:])
	}
}

func (g *Grant) validate() error {
	if !strings.Contains(g.Secret, "/") {
		hint := "write NAMESPACE/NAME"
		if slices.Contains(certs.Codes(), certs.Code(g.Secret)) {
			hint = fmt.Sprintf("%q is a finding: run %q", g.Secret, "pinniped explain "+g.Secret)
		}
		return ui.WithHint(ui.Usage(fmt.Errorf("%q lacks the namespace of the Secret", g.Secret)), "%s", hint)
	}
	var err error
	if g.secret, err = delegation.SecretName(g.Secret, ""); err != nil {
		return ui.Usage(err)
	}
	if g.To != "" {
		if _, err := delegation.SecretName(g.To+"/x", ""); err != nil {
			return ui.Usage(fmt.Errorf("invalid value %q for --to: not a namespace", g.To))
		}
	}
	return nil
}

// agent returns the agent's service account. It reads from the cluster what flags do not set.
func (g *Grant) agent(ctx context.Context, s *session.Session) (types.NamespacedName, error) {
	account := types.NamespacedName{Namespace: cmp.Or(g.To, s.Namespace), Name: g.ServiceAccount}
	if account.Namespace == "" {
		var err error
		if account.Namespace, err = s.FindNamespace(ctx); err != nil {
			return account, err
		}
	}
	if account.Name == "" && s.Cluster != nil {
		issuer, err := s.Cluster.CredentialIssuer(ctx, s.CredentialIssuer)
		switch {
		case err == nil:
			account.Name = discovery.AppName(issuer.Name)
			if published := issuer.Status.Objects; published != nil && published.ServiceAccount != "" {
				account.Name = published.ServiceAccount
			}
		case errors.Is(err, discovery.ErrUnreachable), errors.Is(err, discovery.ErrUnauthorized), ctx.Err() != nil:
			return account, err
		}
	}
	if account.Name == "" {
		account.Name = discovery.AppName(s.CredentialIssuer) // an owner may not be able to read it
	}
	return account, nil
}
