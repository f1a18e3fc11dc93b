package getkubeconfig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// lookupTimeout limits one request to the cluster.
const lookupTimeout = 20 * time.Second

// Run creates the kubeconfig. It writes nothing if there is an error.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()

	source, cluster, err := o.connect(ctx)
	if err != nil {
		return err
	}
	input := kubeconfig.Input{Source: source, Suffix: o.NameSuffix, Names: o.Names, Exec: kubeconfig.Exec{
		Command: o.CLIPath, InstallHint: o.InstallHint, CredentialCache: o.CredentialCache,
	}}
	switch {
	case o.Login == LoginBearer:
		if err := o.discoverBearer(ctx, cluster, &input); err != nil {
			return err
		}
	case !o.NoConcierge:
		authenticator, err := o.discoverConcierge(ctx, cluster, &input)
		if err != nil {
			return err
		}
		if authenticator.JWT != nil && !o.static() {
			if err := o.OIDC.fromAuthenticator(ctx, cluster, authenticator); err != nil {
				return err
			}
		}
	}
	switch {
	case o.Login == LoginBearer:
	case o.static():
		input.Exec.Static = &kubeconfig.Static{Token: o.StaticToken, TokenEnv: o.StaticTokenEnv}
	default:
		if input.Exec.OIDC, err = o.OIDC.discover(ctx, o.Progress); err != nil {
			return err
		}
	}

	if o.PrintLogin {
		return o.printLogin(&input)
	}
	if err := o.actAsUser(ctx, &input); err != nil {
		return err
	}
	config, err := kubeconfig.Build(input)
	if err != nil {
		return fmt.Errorf("building the kubeconfig: %w", err)
	}
	if o.issuer != nil && o.issuer.UID != "" && o.Destination.MergeInto != "" {
		if err := kubeconfig.SetInstallation(config, string(o.issuer.UID)); err != nil {
			return fmt.Errorf("building the kubeconfig: %w", err)
		}
	}
	if o.Validation != ValidateNothing {
		if err := o.tryConnection(ctx, config); err != nil {
			return err
		}
	}
	if o.Validation == ValidateLogin {
		if err := o.tryLogin(ctx, config); err != nil {
			return err
		}
	}
	o.sayCommand()
	return o.deliver(ctx, config, &input)
}

// connect returns the source of the new kubeconfig, and the Discoverer.
func (o *Options) connect(ctx context.Context) (*kubeconfig.Source, Discoverer, error) {
	if o.From.URL == "" {
		return o.Connect(o.Cluster, o.Suffix)
	}
	info, err := o.fetch(ctx)
	if err != nil {
		return nil, nil, err
	}
	o.Suffix = info.APIGroupSuffix
	return info.Source(), fetched{info}, nil
}

func (o *Options) static() bool { return o.StaticToken != "" || o.StaticTokenEnv != "" }

// discoverConcierge finds the frontend and the authenticator, and completes input with them.
func (o *Options) discoverConcierge(
	ctx context.Context,
	cluster Discoverer,
	input *kubeconfig.Input,
) (*discovery.Authenticator, error) {
	frontend, err := o.discoverFrontend(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if err := o.useBlock(input); err != nil {
		return nil, err
	}
	lookup, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	authenticator, err := o.chooseAuthenticator(lookup, cluster)
	if err != nil {
		return nil, fmt.Errorf("choosing the authenticator: %w", err)
	}
	o.Progress.Done("discovered %s %q", authenticator.Type.Kind(), authenticator.Name)
	if authenticator.Phase == authenticationv1alpha1.PhaseError ||
		authenticator.Phase == authenticationv1alpha1.PhasePending {
		kind := authenticator.Type.Kind()
		o.Progress.Warn("%s %q is not ready, so logins will fail until it is: %s", kind, authenticator.Name,
			cmp.Or(authenticator.Problem, "its phase is "+string(authenticator.Phase)))
		o.Progress.Info("see all of its conditions: kubectl describe %s.authentication.concierge.%s %s",
			strings.ToLower(kind), o.Suffix, authenticator.Name)
	}

	if err := o.connection(frontend, input); err != nil {
		return nil, err
	}
	o.useStrategy(frontend, input)
	exec := input.Exec.Concierge
	exec.APIGroupSuffix = o.Suffix
	exec.AuthenticatorName, exec.AuthenticatorType = authenticator.Name, string(authenticator.Type)
	return authenticator, nil
}

// chooseAuthenticator returns the authenticator of the flags, or the only one. If there are several and users log in
// with OpenID Connect, it is the only JWTAuthenticator, unless --oidc-issuer names another issuer.
func (o *Options) chooseAuthenticator(ctx context.Context, cluster Discoverer) (*discovery.Authenticator, error) {
	found, err := cluster.Authenticator(ctx, o.AuthenticatorType, o.AuthenticatorName)
	_, several := errors.AsType[*discovery.SeveralError](err)
	if !several || o.static() || o.AuthenticatorType != "" {
		return found, err
	}
	only, jwtErr := cluster.Authenticator(ctx, discovery.JWT, o.AuthenticatorName)
	if jwtErr != nil || o.OIDC.Issuer != "" && o.OIDC.Issuer != only.JWT.Spec.Issuer {
		return nil, err
	}
	return only, nil
}

// connection chooses the endpoint and the CA bundle for kubectl and for the credential plugin.
func (o *Options) connection(frontend *discovery.Frontend, input *kubeconfig.Input) error {
	source := input.Source
	endpoint, bundle := frontend.Endpoint, frontend.CABundle
	forLogin := bundle
	o.mode = frontend.Mode
	switch frontend.Mode {
	case configv1alpha1.FrontendTokenCredentialRequestAPI:
		// The administrator's kubeconfig has the address that works from here.
		o.Progress.Done("discovered Concierge operating in TokenCredentialRequest API mode")
		endpoint = source.Cluster.Server
		var err error
		if bundle, err = source.CABundle(); err != nil {
			return err
		}
		if forLogin = bundle; source.Cluster.InsecureSkipTLSVerify && len(bundle) == 0 && len(o.CABundle) == 0 {
			// Tokens are only sent over verified connections.
			forLogin = frontend.CABundle
			o.Progress.Warn(
				"the kubeconfig skips TLS verification, so kubectl will too; logins verify the cluster with the published CA " +
					"bundle",
			)
		}
	case configv1alpha1.FrontendImpersonationProxy:
		o.Progress.Done("discovered Concierge operating in impersonation proxy mode")
	}
	endpoint = cmp.Or(o.Endpoint, endpoint)
	if len(o.CABundle) > 0 {
		bundle, forLogin = o.CABundle, o.CABundle
	}
	if !strings.HasPrefix(endpoint, "https://") {
		return ui.WithHint(
			fmt.Errorf("the endpoint %q does not begin with \"https://\", and tokens are only sent over TLS", endpoint),
			"set another one with --endpoint",
		)
	}
	o.Progress.Done("discovered Concierge endpoint %s", endpoint)
	if len(forLogin) == 0 {
		o.Progress.Done("discovered Concierge certificate authority bundle: none, so clients use their system roots")
	} else {
		roots, err := kubeconfig.CountCertificates(forLogin)
		if err != nil {
			return ui.WithHint(
				fmt.Errorf("checking the CA bundle of the endpoint: %w", err),
				"pass a valid CA bundle with --ca-bundle",
			)
		}
		o.Progress.Done("discovered Concierge certificate authority bundle with %d %s", roots, plural(roots, "certificate"))
	}
	input.Server, input.CABundle = endpoint, bundle
	input.Exec.Concierge = &kubeconfig.Concierge{Endpoint: endpoint, CABundle: forLogin, Follow: o.follow()}
	return nil
}

// discoverFrontend reads the CredentialIssuer and chooses a strategy. It waits while none works and one is pending, and
// up to StatusWait for a pending one that is preferred to a working one.
func (o *Options) discoverFrontend(ctx context.Context, cluster Discoverer) (*discovery.Frontend, error) {
	var task *ui.Task
	defer func() {
		if task != nil {
			task.Stop()
		}
	}()
	started := time.Now()
	var issuer *configv1alpha1.CredentialIssuer
	for {
		latest, err := o.readIssuer(ctx, cluster, issuer)
		if _, several := errors.AsType[*discovery.SeveralError](err); several {
			err = ui.WithHint(err, "name one of them with --credential-issuer")
		}
		if err != nil && (issuer == nil || permanent(err)) {
			return nil, fmt.Errorf("discovering the CredentialIssuer: %w", err)
		}
		if issuer == nil && o.From.URL == "" {
			o.Progress.Done("discovered CredentialIssuer %q", latest.Name)
		}
		if latest != nil {
			issuer = latest // on an error while waiting, keep the last one
		}
		o.issuer = issuer
		mode := o.wantedMode()
		longEnough := o.SkipWait || time.Since(started) > o.StatusWait
		frontend, err := discovery.ChooseStrategy(issuer, mode)
		none, ok := errors.AsType[*discovery.NoStrategyError](err)
		better := discovery.PendingBefore(issuer, mode)
		switch {
		case !ok && (err != nil || better == nil):
			if err == nil && frontend.Trouble != "" {
				o.Progress.Warn(
					"the impersonation proxy's configuration is not in effect (%s), so the kubeconfig has the proxy's current "+
						"endpoint and CA bundle",
					frontend.Trouble,
				)
			}
			for _, strategy := range issuer.Status.Strategies {
				for _, finding := range strategy.Findings {
					if finding.Code == configv1alpha1.CodeKubernetesTooOld {
						o.Progress.Warn("%s", finding.Message)
					}
				}
			}
			return frontend, err
		case !ok && longEnough:
			o.Progress.Warn("strategy %s, which the cluster prefers, is pending (%s): skipping it",
				better.Type, better.Message)
			return frontend, nil
		case ok && (o.SkipWait || !none.Pending() || len(none.Strategies) == 0 && longEnough):
			return nil, err
		}
		if task == nil {
			task = o.Progress.Start("waiting for pending strategies of the CredentialIssuer")
		}
		task.Update("waiting: %s", pendingMessage(issuer))
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, fmt.Errorf("waiting for a strategy: %w", ctx.Err())
			}
			return nil, fmt.Errorf("waiting for a strategy (--timeout %s): %w: %w", o.Timeout, ctx.Err(), err)
		case <-time.After(o.PollInterval):
		}
	}
}

// readIssuer reads the known CredentialIssuer, or the one that the flags name.
func (o *Options) readIssuer(
	ctx context.Context,
	cluster Discoverer,
	known *configv1alpha1.CredentialIssuer,
) (*configv1alpha1.CredentialIssuer, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	name := o.CredentialIssuer
	if known != nil {
		name = known.Name
	}
	return cluster.CredentialIssuer(ctx, name)
}

// permanent reports whether a retry cannot help.
func permanent(err error) bool {
	return errors.Is(err, discovery.ErrNotFound) || errors.Is(err, discovery.ErrNotInstalled) ||
		errors.Is(err, discovery.ErrForbidden) || errors.Is(err, discovery.ErrUnauthorized)
}

func pendingMessage(issuer *configv1alpha1.CredentialIssuer) string {
	for _, s := range issuer.Status.Strategies {
		if s.Reason == configv1alpha1.ReasonPending {
			return fmt.Sprintf("strategy %s is pending: %s", s.Type, s.Message)
		}
	}
	return "the agent has not reported any strategy yet"
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

func (o *Options) validateFollow() error {
	switch {
	case o.Follow == "":
	case o.NoConcierge, o.Login == LoginBearer:
		return errors.New("--follow applies only to kubeconfigs that log in through the impersonation proxy")
	case o.Follow != kubeconfig.FollowUsual && !filepath.IsAbs(o.Follow):
		return fmt.Errorf("invalid --follow=%s: it must be the absolute path that the kubeconfig will have", o.Follow)
	}
	return nil
}

// follow returns the value of the credential plugin's --follow flag.
func (o *Options) follow() string {
	if o.Follow != "" && o.mode != configv1alpha1.FrontendImpersonationProxy {
		o.Progress.Warn(
			"the kubeconfig will not refresh its trust bundle, because only the impersonation proxy has a trust bundle endpoint",
		)
		return ""
	}
	return o.Follow
}

// useStrategy completes input for the chosen strategy. With ServiceAccountToken, the plugin must request it by name,
// because the token does not identify the user.
func (o *Options) useStrategy(frontend *discovery.Frontend, input *kubeconfig.Input) {
	if o.Auto {
		o.sayWhy(frontend)
	}
	if frontend.Strategy == configv1alpha1.StrategyServiceAccountToken {
		input.Exec.Concierge.Strategy = string(frontend.Strategy)
		o.Progress.Done("discovered that the cluster issues service account tokens, which clients use to impersonate " +
			"the user")
	}
}

// sayWhy prints the chosen strategy, and the problems of those before it.
func (o *Options) sayWhy(frontend *discovery.Frontend) {
	for _, strategy := range o.issuer.Status.Strategies {
		if strategy.Type == frontend.Strategy {
			o.Progress.Info("chose strategy %s: the first one that works", strategy.Type)
			return
		}
		o.Progress.Info("strategy %s does not work: %s", strategy.Type, strategy.Message)
	}
}

// actAsUser logs in, and makes the kubeconfig impersonate the user that the cluster returns, because the plugin cannot
// tell kubectl to do so.
func (o *Options) actAsUser(ctx context.Context, input *kubeconfig.Input) error {
	concierge := input.Exec.Concierge
	if concierge == nil || concierge.Strategy == "" {
		if o.NoImpersonation {
			return ui.Usage(errors.New("--no-impersonation does not apply to a credential that identifies the user"))
		}
		return nil
	}
	if o.NoImpersonation {
		o.Progress.Warn(
			`the kubeconfig is not for a specific user, so it works only with "pinniped run" and "pinniped kubectl"`,
		)
		return nil
	}
	config, err := kubeconfig.Build(*input)
	if err != nil {
		return fmt.Errorf("building the kubeconfig: %w", err)
	}
	if config, err = kubeconfig.WithDefaults(config); err != nil {
		return err
	}
	connection, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the new kubeconfig: %w", err)
	}
	const hint = "log in as the user of the kubeconfig, or use --no-impersonation to create a kubeconfig for all " +
		"users, which works only with \"pinniped run\""
	credential, err := o.LogIn(ctx, connection)
	if err != nil {
		return ui.WithHint(fmt.Errorf("logging in to determine the user of the kubeconfig: %w", err), hint)
	}
	if credential.Impersonate == nil {
		return ui.WithHint(errors.New("the cluster does not report which user the kubeconfig must impersonate"), hint)
	}
	input.Impersonate = credential.Impersonate
	concierge.Identity = credential.Impersonate.Digest()
	o.Progress.Done("logged in: the kubeconfig impersonates %q, with %d %s", credential.Impersonate.User,
		len(credential.Impersonate.Groups), plural(len(credential.Impersonate.Groups), "group"))
	return nil
}
