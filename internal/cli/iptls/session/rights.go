package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rights"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// askTimeout bounds what is asked beside the command's own work.
const askTimeout = 5 * time.Second

// withRights makes a command print its rights with --print-rbac, and name all rights that its user lacks when the
// cluster does not permit something. args are those of the process.
func (s *Session) withRights(cmd *cobra.Command, args []string) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, positional []string) error {
		if s.PrintRBAC {
			return s.printRights(cmd, positional)
		}
		s.lack = func(err error) error { return s.nameLacking(cmd, positional, args, err) }
		return s.Lacking(run(cmd, positional))
	}
}

// Lacking returns err; if it says that something is not permitted, with all that is not permitted.
func (s *Session) Lacking(err error) error {
	if s.lack == nil || err == nil || ui.ExitCodeOf(err) != ui.ExitNotPermitted {
		return err
	}
	if _, named := errors.AsType[*lackingError](err); named {
		return err
	}
	return s.lack(err)
}

// lackingError is an error with everything that is not permitted.
type lackingError struct {
	error
	lacks []string // empty where it is the one thing that the error tells of
	hint  string
}

func (e *lackingError) Unwrap() error { return e.error }
func (e *lackingError) Hint() string  { return e.hint }

func (e *lackingError) Error() string {
	if len(e.lacks) == 0 {
		return e.error.Error()
	}
	return e.error.Error() + "; all that is not permitted: " + strings.Join(e.lacks, ", ")
}

func (s *Session) nameLacking(cmd *cobra.Command, positional, args []string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), askTimeout)
	defer cancel()
	named := &lackingError{error: err}
	line := []string{"pinniped"}
	for _, arg := range args {
		if strings.ContainsAny(arg, " \t\n'\"$&|;<>*?`\\(){}[]#~") || arg == "" {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		line = append(line, arg)
	}
	named.hint = fmt.Sprintf(
		"use the kubeconfig of an administrator, or ask for the Roles that this prints: %s --print-rbac",
		strings.Join(line, " "),
	)
	var lacks []string
	told := 0
	if forbidden, ok := errors.AsType[*discovery.ForbiddenError](err); ok {
		lacks = append(lacks, rights.Says(forbidden.Verb, forbidden.Resource, forbidden.Namespace, forbidden.Name))
		told = 1
	}
	on, failed := s.subject(ctx, positional)
	if failed != nil { // wrong flags, with which the command would not have got here
		return named
	}
	for _, rule := range rights.Needed(cmd.Name(), on) {
		if rule.Optional {
			continue
		}
		for _, what := range attributes(rule) {
			said := rights.Says(what.Verb, rule.Resource, what.Namespace, what.Name)
			if slices.Contains(lacks, said) {
				continue
			}
			// A cluster that does not answer this leaves the one thing that it has refused.
			if allowed, failed := s.Cluster.Allowed(ctx, what); failed == nil && !allowed {
				lacks = append(lacks, said)
			}
		}
	}
	if len(on.Secrets) == 0 && !on.Read && rights.ReadsSecrets(cmd.Name()) {
		lacks = append(lacks, "get the Secret that the CredentialIssuer names, which is not known without reading that")
	}
	if len(lacks) > told {
		named.lacks = lacks
	}
	return named
}

// attributes returns what to ask about a rule, one verb and one object at a time.
func attributes(rule rights.Rule) []authorizationv1.ResourceAttributes {
	names := rule.Names
	if len(names) == 0 {
		names = []string{""}
	}
	var all []authorizationv1.ResourceAttributes
	for _, verb := range rule.Verbs {
		for _, name := range names {
			all = append(all, authorizationv1.ResourceAttributes{
				Namespace: rule.Namespace, Verb: verb, Group: rule.Resource.Group, Resource: rule.Resource.Resource, Name: name,
			})
		}
	}
	return all
}

// subject returns what the command's rights are about: as the cluster says, else as the flags say, else as an
// installation by deploy/ has it.
func (s *Session) subject(ctx context.Context, args []string) (rights.Subject, error) {
	on := rights.Subject{
		Groups: apis.GroupsFor(cmp.Or(s.Suffix, apis.DefaultGroupSuffix)), Issuer: s.CredentialIssuer,
		Search: s.CredentialIssuer == "", Locate: s.Namespace == "", Namespace: s.Namespace,
	}
	var issuer *configv1alpha1.CredentialIssuer
	if s.Cluster != nil {
		if on.Namespace == "" {
			on.Namespace, _ = FindNamespace(ctx, s.Cluster, "", s.CredentialIssuer) // the usual one otherwise
		}
		issuer, _ = s.ReadIssuer(ctx)
	}
	on.Issuer = cmp.Or(on.Issuer, discovery.DefaultAppName+"-config")
	on.Namespace = cmp.Or(on.Namespace, defaultNamespace)
	known := issuer
	if known == nil {
		known = &configv1alpha1.CredentialIssuer{}
		known.Name = on.Issuer
	}
	on.Issuer, on.Read = known.Name, issuer != nil
	objects, _ := discovery.Objects(known, on.Namespace)
	on.GeneratedCA, on.HandedOut = objects.GeneratedCASecret, objects.HandedOutConfigMap
	on.Services = []string{objects.LoadBalancerService, objects.ClusterIPService}
	if issuer != nil {
		on.Services = nil
		if service := discovery.ProxyService(issuer.Spec.ImpersonationProxy, objects); service != "" {
			on.Services = []string{service}
		}
		if tls := issuer.Spec.ImpersonationProxy.TLS; tls != nil {
			AddSecret(&on, tls.SecretName)
		}
	}
	if s.Subject != nil {
		if err := s.Subject(&on, issuer, args); err != nil {
			return on, err
		}
	}
	for _, secret := range on.Secrets { // ingress-shim and most people name the Certificate as its Secret
		on.Certificates = append(on.Certificates, s.certificateOf(ctx, secret))
	}
	return on, nil
}

// certificateOf returns the name of cert-manager's Certificate that renews a Secret: the Secret's own name, unless the
// Secret may be read and tells another.
func (s *Session) certificateOf(ctx context.Context, name types.NamespacedName) types.NamespacedName {
	if s.Cluster == nil {
		return name
	}
	if secret, err := ReadSecret(ctx, s.Cluster, name.Namespace, name.Name); err == nil && secret != nil {
		if by := IssuedBy(secret); by != nil && by.Name != "" {
			name.Name = by.Name
		}
	}
	return name
}

// AddSecret adds the Secret that a spec or a flag names, if it names one.
func AddSecret(on *rights.Subject, text string) {
	name, err := delegation.SecretName(text, on.Namespace)
	if text != "" && err == nil && !slices.Contains(on.Secrets, name) {
		on.Secrets = append(on.Secrets, name)
	}
}

// printRights prints the Roles that a command needs. A cluster that cannot be asked leaves what the flags say.
func (s *Session) printRights(cmd *cobra.Command, positional []string) error {
	if err := s.Open(); err != nil {
		s.Cluster = nil
		s.Progress.Info("The cluster was not asked: %v", err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
	defer cancel()
	if s.Cluster != nil {
		if _, err := s.Cluster.CredentialIssuer(ctx, s.CredentialIssuer); err != nil {
			s.Progress.Info("The CredentialIssuer was not read, so that its names are those of the flags, or the usual ones: %v",
				err)
			if errors.Is(err, discovery.ErrUnreachable) {
				s.Cluster = nil
			}
		}
	}
	on, err := s.subject(ctx, positional)
	if err != nil {
		return err
	}
	text := rights.Manifest("pinniped-ip-tls-"+cmd.Name(), rights.Needed(cmd.Name(), on))
	if len(on.Secrets) == 0 && on.Grant == nil {
		s.Progress.Info("No Secret is among them, because none is configured or named with --secret")
	}
	_, err = io.WriteString(s.Out, text)
	return err
}
