// Package history implements `pinniped ip-tls history`: revisions, and whether their clients verify the certificate.
package history

import (
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
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Options is everything `pinniped ip-tls history` needs; a test fills it directly.
type Options struct {
	Session *session.Session
	Retire  string // the ID of a state, or how it begins; empty: only look
	Style   ui.Style
}

// NewCommand returns `pinniped ip-tls history`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{Session: session.New(f)}
	cmd := &cobra.Command{
		Use:   "history",
		Short: "List revisions, and whether their clients still verify the certificate",
		Long: `List what was published about the impersonation proxy, the newest last: each endpoint, trust bundle and set of names,
from when until when, by whom it was changed, and whether clients that have it verify the certificate that is presented
now. A change that breaks clients in use waits for them, or is refused ("ip-tls set --help").

The agent keeps revisions in a ConfigMap of its namespace, whoever changes the configuration. One that no client has used
breaks nobody. When no kubeconfig has a revision any more, --retire says so: the revision then has no clients, and a
certificate that waits for them is served. What is published now cannot be retired.

Exit codes: 0 listed or retired, 2 unknown ID, 3 published now and not retired (see "pinniped help exit-codes")`,
		Example: `  pinniped ip-tls history

  # All kubeconfigs with the old CA are gone
  pinniped ip-tls history --retire 5c0f9a3e71

  # In a script: whose clients break?
  pinniped ip-tls history -o json | jq -r '.revisions[] | select(.outcome == "refused") | .id'`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Style = f.Style(f.Out)
			return factory.Execute(cmd.Context(), o)
		},
	}
	cmd.Flags().
		StringVar(&o.Retire, "retire", "", "ID of a revision that no kubeconfig has any more, or how the ID begins")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"retire": cobra.NoFileCompletions})
	o.Session.AddFlags(cmd, f, 30*time.Second, factory.Formats()...)
	return cmd
}

// Validate checks the flags before anything is read.
func (o *Options) Validate() error { return o.Session.Validate(factory.Formats()...) }

// Complete loads the kubeconfig.
func (o *Options) Complete() error { return o.Session.Open() }

// Run reads, retires, looks at the endpoint and prints.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	namespace, err := session.FindNamespace(ctx, o.Session.Cluster, o.Session.Namespace, o.Session.CredentialIssuer)
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
	history, found, err := o.Session.Memory(ctx, issuer, namespace)
	if err != nil {
		return err
	}
	if !found {
		done.NotKnown = append(done.NotKnown, "what was published before: "+errNoMemory.Error())
	}
	o.look(ctx, issuer, history, done)
	return o.Session.Print(done, nil, func() ([]byte, error) { return o.text(done) })
}

// look fills in how the clients fare.
func (o *Options) look(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, history serving.History,
	done *result.History,
) {
	var met []session.Met
	url := ""
	if n := len(history.Revisions); n > 0 {
		url = history.Revisions[n-1].Endpoint
	}
	if endpoint, _, _ := serving.Frontend(serving.Strategy(issuer)); endpoint != "" {
		url = endpoint
	}
	if at, err := plan.ParseEndpoint(url); err == nil {
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
	at, _ := plan.ParseEndpoint(url)
	done.Revisions = session.ClientStates(history, met, o.Session.AskElsewhere(ctx, history, at), done.At)
}

// errNoMemory is the error for an agent that remembers nothing.
var errNoMemory = errors.New("the agent has no memory of that; it is Pinniped's, or one from before")

// retire notes that nobody has a state any more, and returns its ID.
func (o *Options) retire(
	ctx context.Context,
	issuer *configv1alpha1.CredentialIssuer,
	namespace string,
) (string, error) {
	objects, _ := discovery.Objects(issuer, namespace)
	for {
		kept, err := o.Session.Cluster.ConfigMap(ctx, objects.Namespace, objects.RevisionsConfigMap)
		switch {
		case errors.Is(err, discovery.ErrNotFound):
			return "", fmt.Errorf("retiring %q: %w", o.Retire, errNoMemory)
		case err != nil:
			return "", session.WithCodes(fmt.Errorf("reading the revision history: %w", err))
		}
		history, err := serving.Read(kept.Data)
		if err != nil {
			return "", fmt.Errorf("ConfigMap %q: %w", kept.Namespace+"/"+kept.Name, err)
		}
		state, err := o.state(history)
		if err != nil || state.Ended() {
			if err == nil {
				o.Session.Progress.Info("State %s is retired already", state.ID)
				return state.ID, nil
			}
			return "", err
		}
		at := o.Session.ServerNow()
		if at.Before(state.Until) {
			at = state.Until
		}
		_, err = o.Session.Cluster.ApplyConfigMap(
			ctx,
			kept.Namespace,
			kept.Name,
			session.Retired(kept, history, at, state.ID),
			discovery.ApplyOptions{FieldManager: plan.FieldManager, Force: true},
		)
		switch {
		case errors.Is(err, discovery.ErrConflict):
			continue // the agent has told clients something else meanwhile
		case err != nil:
			return "", session.WithCodes(fmt.Errorf("retiring %q: %w", state.ID, err))
		}
		o.Session.Progress.Done("Retired state %s: kubeconfigs made %s count for nothing any more", state.ID, state.When())
		return state.ID, nil
	}
}

// state returns the one that is to be retired.
func (o *Options) state(history serving.History) (*serving.Revision, error) {
	state := history.Find(o.Retire)
	if state == nil {
		var known []string
		problem := "is the ID of no state"
		for i := range history.Revisions {
			id := history.Revisions[i].ID
			if strings.HasPrefix(id, o.Retire) {
				problem = "is how several IDs begin"
			}
			known = append(known, id)
		}
		return nil, ui.WithHint(ui.Usage(fmt.Errorf("invalid value %q for --retire: that %s", o.Retire, problem)),
			"known are: %s", plan.OrNone(strings.Join(known, ", ")))
	}
	if state.Until.IsZero() {
		return nil, ui.WithExitCode(ui.WithHint(
			fmt.Errorf("state %q is advertised now, so that it cannot be retired", state.ID),
			plan.NothingChanged+"change what is advertised first"), ui.ExitRefused)
	}
	return state, nil
}

func (o *Options) text(done *result.History) ([]byte, error) {
	var out strings.Builder
	if len(done.Revisions) == 0 {
		ui.Fprintf(&out, "credentialissuer/%s: clients were told nothing\n", done.CredentialIssuer)
	} else if err := session.ClientTable(&out, o.Style, done.Revisions); err != nil {
		return nil, err
	}
	for i, what := range done.NotKnown {
		if i == 0 {
			out.WriteString("\nnot known:\n")
		}
		ui.Fprintf(&out, "  %s\n", what)
	}
	return []byte(out.String()), nil
}
