// Package history implements `pinniped ip-tls history`: revisions, and whether their clients verify the certificate.
package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Options holds the inputs of `pinniped ip-tls history`; a test fills it directly.
type Options struct {
	Session *session.Session
	Retire  string // ID of a revision, or a prefix of it; empty: retire none
	Style   ui.Style
}

// NewCommand returns `pinniped ip-tls history`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{Session: session.New(f)}
	cmd := &cobra.Command{
		Use: "history", Short: "List revisions and whether their clients still verify",
		Long: `List the revisions that the agent has published, the newest last. For each one, show its endpoint, trust bundle
and names, when it was published, who made the change, and whether its clients verify the certificate that is presented
now. A change that would break clients in use is delayed until they verify the new certificate, or is
refused ("ip-tls set --help").

The agent records every change in a ConfigMap in its namespace. A revision that no client has ever used counts as
having no clients. If no kubeconfig contains a revision anymore, retire the revision with --retire. A new
certificate that would break only clients of this revision is then served. You cannot retire the current revision.

Exit codes: 0 listed or retired, 2 unknown ID, 3 not retired because the revision is published now
(see "pinniped help exit-codes")`,
		Example: `  pinniped ip-tls history

  # All kubeconfigs with the old CA are gone
  pinniped ip-tls history --retire 5c0f9a3e71

  # In a script: whose clients break?
  pinniped ip-tls history -o json | jq -r '.revisions[] | select(.outcome == "refused") | .id'`,
		Args: factory.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			o.Style = f.Style(f.Out)
			return factory.Execute(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.Retire, "retire", "", "ID or ID prefix of a revision that no kubeconfig contains")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"retire": cobra.NoFileCompletions})
	o.Session.AddFlags(cmd, f, 30*time.Second, factory.Formats()...)
	return cmd
}

// Validate checks the flags.
func (o *Options) Validate() error { return o.Session.Validate(factory.Formats()...) }

// Complete loads the kubeconfig.
func (o *Options) Complete() error { return o.Session.Open() }

// Run reads the history, retires a revision, probes the endpoint and prints the result.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	namespace, err := o.Session.FindNamespace(ctx)
	if err != nil {
		return err
	}
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return err
	}
	done := &result.History{CredentialIssuer: issuer.Name, At: o.Session.Now().UTC()}
	if o.Retire != "" {
		if done.Retired, err = o.retire(ctx, issuer, namespace); err != nil {
			return err
		}
	}
	history, found, err := o.Session.History(ctx, issuer, namespace)
	if err != nil {
		return err
	}
	if !found {
		done.NotKnown = append(done.NotKnown, "what was published before: "+errNoHistory.Error())
	}
	url, _, _ := serving.Frontend(serving.Strategy(issuer))
	if n := len(history.Revisions); n > 0 {
		url = cmp.Or(url, history.Revisions[n-1].Endpoint)
	}
	var met []session.Met
	at, err := plan.ParseEndpoint(url)
	if err == nil {
		var skipped []string
		if met, skipped, err = session.Ask(ctx, o.Session.Network, at); err != nil {
			done.NotKnown = append(done.NotKnown, fmt.Sprintf("what is presented: resolving %q: %s", at.Host, err))
		}
		for _, address := range skipped {
			done.NotKnown = append(done.NotKnown, fmt.Sprintf("what %s presents: there is no route to it from here", address))
		}
		for _, one := range met {
			if len(one.Chain) == 0 {
				done.NotKnown = append(done.NotKnown, fmt.Sprintf("what %s presents: %s", one.Address, one.Err))
			}
		}
	}
	done.Revisions = session.ClientStates(history, met, o.Session.AskElsewhere(ctx, history, at), done.At)
	return o.Session.Print(done, nil, func() ([]byte, error) { return o.text(done), nil })
}

var errNoHistory = errors.New("the agent keeps no revision history, because it is Pinniped's agent or an older version")

// retire marks a revision as having no clients, and returns its ID.
func (o *Options) retire(
	ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string,
) (string, error) {
	h, found, err := o.Session.History(ctx, issuer, namespace)
	if err != nil {
		return "", err
	}
	if !found {
		return "", fmt.Errorf("retiring %q: %w", o.Retire, errNoHistory)
	}
	revision := h.Find(o.Retire)
	switch {
	case revision == nil:
		var known []string
		problem := "matches no revision"
		for i := range h.Revisions {
			known = append(known, h.Revisions[i].ID)
			if strings.HasPrefix(known[i], o.Retire) {
				problem = "matches several revisions"
			}
		}
		return "", ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --retire: that %s", o.Retire, problem)),
			"known IDs: %s", plan.OrNone(strings.Join(known, ", ")))
	case revision.Until.IsZero():
		return "", ui.WithExitCode(ui.WithHint(fmt.Errorf("revision %q is published now, so it cannot be retired",
			revision.ID), plan.NothingChanged+"first publish another revision"), ui.ExitRefused)
	case revision.Ended():
		o.Session.Progress.Info("Revision %s is already retired", revision.ID)
		return revision.ID, nil
	}
	if _, err := o.Session.Retire(ctx, issuer, namespace, []string{revision.ID}); err != nil {
		return "", err
	}
	o.Session.Progress.Done("Retired revision %s, so later changes ignore kubeconfigs made %s",
		revision.ID, revision.When())
	return revision.ID, nil
}

func (o *Options) text(done *result.History) []byte {
	var out strings.Builder
	if len(done.Revisions) == 0 {
		ui.Fprintf(&out, "credentialissuer/%s: nothing was published\n", done.CredentialIssuer)
	} else {
		_ = session.ClientTable(&out, o.Style, done.Revisions) // a Builder cannot fail
	}
	ui.List(&out, "not known", done.NotKnown)
	return []byte(out.String())
}
