// Package logout implements `pinniped logout`.
package logout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// aloneTimeout is how long logout waits for a running login of the same session.
const aloneTimeout = 10 * time.Second

// Options holds the inputs of the command; a test fills it directly.
type Options struct {
	Progress *ui.Progress
	Now      func() time.Time

	Cluster         factory.ClusterFlags
	Issuer          string // end all its sessions, instead of those of a cluster
	All             bool
	SessionCache    string
	CredentialCache string
	CABundlePaths   []string
	CABundleData    []string
	Timeout         time.Duration
	Output          string
	Out             io.Writer

	// Login returns the stored login of the kubeconfig's context.
	Login func(factory.ClusterFlags) (*login.Saved, error)
	// KnownBundles returns the CA bundles of the issuers in the kubeconfig, by issuer.
	KnownBundles func(factory.ClusterFlags) map[string][]byte

	caBundle []byte // set by Validate
}

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{
		Now: f.Now, Out: f.Out,
		Login:        func(flags factory.ClusterFlags) (*login.Saved, error) { return savedBy(f, flags) },
		KnownBundles: func(flags factory.ClusterFlags) map[string][]byte { return knownBundles(f, flags) },
	}
	cmd := &cobra.Command{
		Use:   "logout",
		Short: "Delete cached sessions and credentials, and revoke tokens",
		Long: `Log out: delete cached sessions and credentials on this computer, and revoke their tokens if the issuer supports
revocation (RFC 7009).

Without --issuer or --all, the command logs out of one cluster: the cluster of the kubeconfig's context. If other clusters
share that session at the issuer, the session ends for them too. With --issuer or --all, the command also deletes the cached
credentials of all clusters, because the cache does not record which session a credential came from.`,
		Example: `  # From the current cluster
  pinniped logout

  # From all clusters that use one issuer
  pinniped logout --issuer https://issuer.example.com

  # From everything
  pinniped logout --all`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = f.Progress()
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	factory.AddOutput(cmd, &o.Output, factory.Formats()...)
	o.Cluster.AddFlags(flags)
	flags.StringVar(&o.Issuer, "issuer", "", "end all sessions at this issuer")
	flags.BoolVar(&o.All, "all", false, "end all sessions")
	flags.StringVar(
		&o.SessionCache,
		"session-cache",
		login.DefaultPath(f, login.SessionsFile),
		"session cache for --issuer or --all (otherwise, the kubeconfig names the cache)",
	)
	flags.StringVar(
		&o.CredentialCache,
		"credential-cache",
		login.DefaultPath(f, login.CredentialsFile),
		"credential cache for --issuer or --all (otherwise, the kubeconfig names the cache)",
	)
	flags.StringSliceVar(
		&o.CABundlePaths,
		"ca-bundle",
		nil,
		"PEM file with the issuer's CA bundle, repeatable (default: the one in the kubeconfig, or the system roots)",
	)
	flags.StringSliceVar(
		&o.CABundleData,
		"ca-bundle-data",
		nil,
		"the issuer's CA bundle as base64-encoded PEM, repeatable",
	)
	flags.DurationVar(&o.Timeout, "timeout", time.Minute, "time limit for revoking tokens (0: none)")
	factory.Bind(flags, "timeout", factory.KeyTimeout)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"kubeconfig-context": f.CompleteContexts(&o.Cluster)})
	return cmd
}

// Validate checks the flags.
func (o *Options) Validate() error {
	if err := factory.CheckOutput(o.Output, factory.Formats()...); err != nil {
		return err
	}
	if o.All && o.Issuer != "" {
		return ui.Usage(errors.New("only one of --issuer and --all can be specified"))
	}
	var err error
	o.caBundle, err = login.ReadBundles(kubeconfig.ReadInput, o.CABundlePaths, o.CABundleData)
	return err
}

// ending is a session for logout to end at its issuer.
type ending struct {
	cache   *sessioncache.Cache
	session sessioncache.Session
	bundle  []byte
}

// Run removes credentials and sessions from this computer, and then revokes the tokens at the issuer, so that they are
// removed even if the issuer cannot be reached.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	endings, forgotten, err := o.forget(ctx)
	if err != nil {
		return err
	}
	if forgotten > 0 {
		o.Progress.Done("deleted %d cluster %s", forgotten, plural(forgotten, "credential"))
	}
	done := &result.Logout{Credentials: forgotten, Sessions: []result.EndedSession{}}
	var problems []error
	for _, e := range endings {
		ended, problem := o.end(ctx, e)
		if problem != nil {
			problems = append(problems, problem)
			ended.Problem = problem.Error()
		}
		done.Sessions = append(done.Sessions, ended)
	}
	if len(endings) == 0 && forgotten == 0 && o.Issuer == "" {
		o.Progress.Info("no sessions")
	}
	// ui.WithHint returns nil for nil.
	err = ui.WithHint(
		errors.Join(problems...),
		"the sessions are deleted on this computer, but copies of the tokens work until they expire: end the sessions at "+
			"the issuer too",
	)
	return result.Print(o.Out, o.Output, done, err, func() ([]byte, error) { return nil, nil })
}

// forget removes credentials, and returns the sessions to end.
func (o *Options) forget(ctx context.Context) (endings []ending, credentials int, err error) {
	if !o.All && o.Issuer == "" {
		var saved *login.Saved
		if saved, err = o.Login(o.Cluster); err != nil {
			return nil, 0, err
		}
		cache := &credentialcache.Cache{Path: saved.CredentialCache, Now: o.Now}
		if credentials, err = cache.Delete(ctx, false, saved.CredentialKey); err != nil || saved.Login == nil {
			return nil, credentials, err
		}
		for _, session := range saved.Sessions.Sessions() {
			if session.Key.Equal(saved.Login.Key()) {
				bundle := saved.Login.CABundle
				if len(o.caBundle) > 0 {
					bundle = o.caBundle
				}
				endings = append(endings, ending{saved.Sessions, session, bundle})
			}
		}
		return endings, credentials, nil
	}
	sessions := &sessioncache.Cache{Path: o.SessionCache, Now: o.Now}
	bundles := o.KnownBundles(o.Cluster)
	for _, session := range sessions.Sessions() {
		if !o.All && session.Key.Issuer != o.Issuer {
			continue
		}
		bundle := o.caBundle
		if len(bundle) == 0 {
			bundle = bundles[session.Key.Issuer]
		}
		endings = append(endings, ending{sessions, session, bundle})
	}
	if len(endings) == 0 && !o.All { // credentials do not record their issuer
		o.Progress.Info("no session at issuer %q, only at: %s", o.Issuer, issuersOf(sessions.Sessions()))
		return nil, 0, nil
	}
	cache := &credentialcache.Cache{Path: o.CredentialCache, Now: o.Now}
	credentials, err = cache.Delete(ctx, true)
	return endings, credentials, err
}

// issuersOf lists the issuers of sessions.
func issuersOf(sessions []sessioncache.Session) string {
	issuers := map[string]bool{}
	for _, session := range sessions {
		issuers[session.Key.Issuer] = true
	}
	if len(issuers) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(issuers)), ", ")
}

// end removes a session and revokes its tokens. The returned session is valid even with an error.
func (o *Options) end(ctx context.Context, e ending) (result.EndedSession, error) {
	session := e.session
	issuer := session.Key.Issuer
	ended := result.EndedSession{
		Issuer:     issuer,
		User:       oidclogin.UserOf(&session.Tokens),
		Revocation: result.RevocationFailed,
	}
	waiting, cancel := context.WithTimeout(ctx, aloneTimeout)
	defer cancel()
	unlock, err := e.cache.Alone(waiting, session.Key) // a concurrent refresh would restore the session
	switch {
	case err == nil:
		defer unlock()
	case ctx.Err() == nil:
		o.Progress.Warn("another command is logging in at issuer %s: log out again afterwards", issuer)
	}
	taken, err := e.cache.Take(ctx, session.Key)
	if err != nil {
		return ended, err
	}
	if taken != nil { // use the current tokens: a refresh may have replaced them
		session = *taken
		ended.User = oidclogin.UserOf(&session.Tokens)
	}
	whose := ""
	if ended.User != "" {
		whose = " of " + ended.User
	}
	revoker := &oidclogin.Login{Issuer: issuer, ClientID: session.Key.ClientID, CABundle: e.bundle, Now: o.Now}
	revoked, err := revoker.Revoke(ctx, &session.Tokens)
	if err != nil {
		o.Progress.Warn("ended the session%s at issuer %s on this computer only", whose, issuer)
		return ended, err
	}
	switch revoked {
	case oidclogin.NotOffered:
		ended.Revocation = result.RevocationNotOffered
		o.Progress.Done(
			"ended the session%s at issuer %s on this computer; the issuer does not support revocation",
			whose,
			issuer,
		)
	case oidclogin.Revoked:
		ended.Revocation = result.RevocationDone
		o.Progress.Done("ended the session%s at issuer %s; the issuer has revoked the tokens", whose, issuer)
	case oidclogin.NothingToDo:
		ended.Revocation = result.RevocationNotNeeded
		o.Progress.Done("ended the session%s at issuer %s", whose, issuer)
	}
	return ended, nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// savedBy returns the stored login of the kubeconfig's context.
func savedBy(f *factory.Factory, flags factory.ClusterFlags) (*login.Saved, error) {
	cluster, err := f.Cluster(flags)
	if err != nil {
		return nil, err
	}
	saved, err := login.SavedFor(f, cluster)
	if err != nil {
		return nil, ui.WithHint(fmt.Errorf("reading the user of context %q: %w", cluster.Source.ContextName, err),
			"choose another context with --kubeconfig-context, or end sessions with --issuer or --all")
	}
	return saved, nil
}

// knownBundles collects the CA bundles of the issuers in the kubeconfig, since sessions have none. Without a kubeconfig
// it returns none.
func knownBundles(f *factory.Factory, flags factory.ClusterFlags) map[string][]byte {
	bundles := map[string][]byte{}
	cluster, err := f.Cluster(flags)
	if err != nil {
		return bundles
	}
	for _, user := range cluster.Raw.AuthInfos {
		if user.Exec == nil || !slices.Contains(user.Exec.Args, "oidc") {
			continue
		}
		if saved, err := login.SavedBy(f, user.Exec.Args, nil); err == nil && saved.Login != nil {
			bundles[saved.Login.Issuer] = append(bundles[saved.Login.Issuer], saved.Login.CABundle...)
		}
	}
	return bundles
}
