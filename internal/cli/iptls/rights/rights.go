package rights

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// Rule is a right that a command uses, in the words of RBAC.
type Rule struct {
	Resource schema.GroupResource
	Verbs    []string
	// Namespace is empty for what has no namespace.
	Namespace string
	// Names are the only objects that it is about; empty for all.
	Names []string
	// Optional means that the command works without it, and tells less.
	Optional bool
	// Why is what the command needs it for, as a comment.
	Why string
}

// Subject is what a command is about, as far as that is known.
type Subject struct {
	Groups apis.Groups
	// Issuer names the CredentialIssuer; when it is empty, there is no rule about one object.
	Issuer string
	// Search is true when the command looks for the CredentialIssuer, and Locate when it looks for the agent's namespace.
	Search, Locate bool
	// Namespace is the agent's, and Services are those in front of the proxy.
	Namespace string
	Services  []string
	// Secrets hold the certificates. Certificates are those of cert-manager that renew them.
	Secrets      []types.NamespacedName
	Certificates []types.NamespacedName
	// HandedOut names the ConfigMap in which the agent keeps what clients were told; empty for an agent without one.
	HandedOut string
	// GeneratedCA names the Secret of the agent's own CA.
	GeneratedCA string
	// Writes is the Secret that the command writes; empty for none.
	Writes string
	// Grant is the delegation that the command is about; nil for none.
	Grant  *delegation.Grant
	Revoke bool // the delegation is removed
	// Read is true when the CredentialIssuer was read, so that the names are those in it.
	Read bool
	// LookOnly is true when nothing is changed.
	LookOnly bool
}

// part is one thing that a command does, with the rights that it takes.
type part func(on Subject) []Rule

// parts returns what each command does.
func parts() map[string][]part {
	look := []part{locate, readIssuer}
	evaluate := append(slices.Clone(look), readServices, readMemory, readSecrets)
	change := append(slices.Clone(evaluate), readGeneratedCA, writeIssuer, readLeases)
	return map[string][]part{
		"history":  look,
		"clients":  append(slices.Clone(look), readMemory, writeMemory),
		"manifest": append(slices.Clone(look), readServices, optional(readSecrets)),
		"check":    evaluate,
		"status": append(
			slices.Clone(look),
			optional(readServices),
			optional(readMemory),
			optional(readSecrets),
			readCertificates,
			readLeases,
		),
		"set": append(slices.Clone(change), listCertificates, writeSecret),
		// It reads no certificate.
		"unset":    append(slices.Clone(look), readServices, readMemory, readGeneratedCA, writeIssuer, readLeases),
		"undo":     change,
		"apply":    change,
		"rotate":   change,
		"delegate": {optional(locate), optional(readIssuer), writeGrant, revoked(readServices, readMemory, readGeneratedCA)},
		"explain":  {optional(locate), optional(readIssuer), explainGrant},
	}
}

// Needed returns what a command needs. command is its name below ip-tls.
func Needed(command string, on Subject) []Rule {
	var rules []Rule
	for _, part := range parts()[command] {
		rules = append(rules, part(on)...)
	}
	return rules
}

// ReadsSecrets says whether a command must read the Secrets that hold the certificates.
func ReadsSecrets(command string) bool {
	on := Subject{Secrets: []types.NamespacedName{{Name: "any"}}}
	return slices.ContainsFunc(Needed(command, on), func(rule Rule) bool {
		return !rule.Optional && rule.Resource.Resource == "secrets"
	})
}

// optional makes all of a part's rules optional.
func optional(of part) part {
	return func(on Subject) []Rule {
		rules := of(on)
		for i := range rules {
			rules[i].Optional = true
		}
		return rules
	}
}

// revoked are the parts that tell whom it locks out to revoke a delegation.
func revoked(parts ...part) part {
	return func(on Subject) []Rule {
		var rules []Rule
		for _, one := range parts {
			if on.Revoke {
				rules = append(rules, optional(one)(on)...)
			}
		}
		return rules
	}
}

func locate(on Subject) []Rule {
	if !on.Locate {
		return nil
	}
	return []Rule{{
		Resource: schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}, Verbs: []string{"get"},
		Names: []string{on.Groups.Login.Version + "." + on.Groups.Login.Group}, Optional: true,
		Why: "in which namespace the agent runs (or name it with --namespace)",
	}}
}

func issuers(on Subject) schema.GroupResource {
	return on.Groups.Config.WithResource("credentialissuers").GroupResource()
}

func readIssuer(on Subject) []Rule {
	var rules []Rule
	if on.Search {
		rules = append(rules, Rule{
			Resource: issuers(on), Verbs: []string{"list"},
			// A user who may not list them gets the one with the usual name.
			Optional: on.Issuer == discovery.DefaultAppName+"-config",
			Why:      "which CredentialIssuer there is (or name it with --credential-issuer)",
		})
	}
	if on.Issuer == "" {
		return rules
	}
	return append(rules, Rule{
		Resource: issuers(on), Verbs: []string{"get"}, Names: []string{on.Issuer}, Why: "what is configured and advertised",
	})
}

func writeIssuer(on Subject) []Rule {
	if on.Issuer == "" || on.LookOnly {
		return nil
	}
	return []Rule{{
		Resource: issuers(on), Verbs: []string{"patch"}, Names: []string{on.Issuer}, Why: "the change itself",
	}}
}

func readServices(on Subject) []Rule {
	if len(on.Services) == 0 {
		return nil
	}
	return []Rule{{
		Resource: schema.GroupResource{Resource: "services"}, Verbs: []string{"get"}, Namespace: on.Namespace,
		Names: on.Services, Why: "the addresses that clients may use",
	}}
}

func readMemory(on Subject) []Rule {
	if on.HandedOut == "" {
		return nil
	}
	return []Rule{{
		Resource: schema.GroupResource{Resource: "configmaps"}, Verbs: []string{"get"}, Namespace: on.Namespace,
		Names: []string{on.HandedOut}, Why: "what clients were told until now",
	}}
}

func writeMemory(on Subject) []Rule {
	if on.HandedOut == "" || on.LookOnly {
		return nil
	}
	return []Rule{{
		Resource: schema.GroupResource{Resource: "configmaps"}, Verbs: []string{"patch"}, Namespace: on.Namespace,
		Names: []string{on.HandedOut}, Why: "--retire notes there what nobody has any more",
	}}
}

func readSecrets(on Subject) []Rule {
	var rules []Rule
	for _, secret := range on.Secrets {
		if secret.Namespace != on.Namespace {
			rules = append(rules, askDelegation(secret.Namespace)...)
		}
		rules = append(rules, readSecret(secret.Namespace, secret.Name, "the certificate that is checked"))
	}
	return rules
}

func readSecret(namespace, name, why string) Rule {
	return Rule{
		Resource: schema.GroupResource{Resource: "secrets"}, Verbs: []string{"get"}, Namespace: namespace,
		Names: []string{name}, Why: why,
	}
}

// askDelegation finds out whether the agent may use a Secret of another namespace.
func askDelegation(namespace string) []Rule {
	return []Rule{
		{
			Resource: delegation.Resource().GroupResource(), Verbs: []string{"list"}, Namespace: namespace,
			Why: "whether the agent may use the Secret",
		},
		{
			Resource: schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
			Verbs:    []string{"create"}, Namespace: namespace, Optional: true,
			Why: "whether RBAC lets the agent's service account read it",
		},
	}
}

func readGeneratedCA(on Subject) []Rule {
	if on.GeneratedCA == "" {
		return nil
	}
	rule := readSecret(on.Namespace, on.GeneratedCA, "the agent's own CA, to which a change may lead")
	rule.Optional = true
	return []Rule{rule}
}

func readCertificates(on Subject) []Rule {
	var rules []Rule
	for _, certificate := range on.Certificates {
		rules = append(rules, Rule{
			Resource: schema.GroupResource{Group: "cert-manager.io", Resource: "certificates"}, Verbs: []string{"get"},
			Namespace: certificate.Namespace, Names: []string{certificate.Name}, Optional: true,
			Why: "when cert-manager renews it",
		})
	}
	return rules
}

func listCertificates(on Subject) []Rule {
	var rules []Rule
	for _, secret := range on.Secrets {
		rules = append(rules, Rule{
			Resource: schema.GroupResource{Group: "cert-manager.io", Resource: "certificates"}, Verbs: []string{"list"},
			Namespace: secret.Namespace, Optional: true, Why: "whether cert-manager is about to fill the Secret",
		})
	}
	return rules
}

func readLeases(on Subject) []Rule {
	return []Rule{{
		Resource: schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, Verbs: []string{"list"},
		Namespace: on.Namespace, Optional: true, Why: "whether the agent's replicas live",
	}}
}

func writeSecret(on Subject) []Rule {
	if on.Writes == "" || on.LookOnly {
		return nil
	}
	secrets := schema.GroupResource{Resource: "secrets"}
	return []Rule{
		{
			Resource: secrets, Verbs: []string{"patch", "delete"}, Namespace: on.Namespace, Names: []string{on.Writes},
			Why: "--cert goes into it; a Secret of a run that failed is removed again",
		},
		{
			Resource: secrets, Verbs: []string{"create"}, Namespace: on.Namespace,
			Why: "--cert makes it where there is none; RBAC cannot restrict this to one name",
		},
	}
}

func writeGrant(on Subject) []Rule {
	if on.Grant == nil {
		return nil
	}
	namespace, names := on.Grant.Secret.Namespace, []string{on.Grant.Name()}
	rbac := "rbac.authorization.k8s.io"
	kinds := []schema.GroupResource{
		{Group: rbac, Resource: "roles"}, {Group: rbac, Resource: "rolebindings"}, delegation.Resource().GroupResource(),
	}
	var rules []Rule
	for _, kind := range kinds {
		if on.Revoke {
			rules = append(rules, Rule{
				Resource: kind, Verbs: []string{"get", "delete"}, Namespace: namespace, Names: names,
				Why: "what is removed, if this command has made it",
			})
			continue
		}
		rules = append(rules,
			Rule{
				Resource: kind, Verbs: []string{"patch"}, Namespace: namespace, Names: names, Why: "an object of the delegation",
			},
			Rule{
				Resource: kind, Verbs: []string{"create"}, Namespace: namespace,
				Why: "makes it; RBAC cannot restrict this to one name",
			},
			Rule{
				Resource: kind, Verbs: []string{"get"}, Namespace: namespace, Names: names, Optional: true,
				Why: "whether it was there already",
			})
	}
	rules = append(rules, Rule{
		Resource: delegation.Resource().GroupResource(), Verbs: []string{"list"}, Namespace: namespace, Optional: true,
		Why: "whether the cluster knows the kind, and other delegations",
	})
	if on.Revoke {
		return rules
	}
	read := readSecret(namespace, on.Grant.Secret.Name, "RBAC lets a user pass on only the rights that the user has")
	read.Verbs = delegation.ReadVerbs()
	return append(rules, read)
}

func explainGrant(on Subject) []Rule {
	if on.Grant == nil {
		return nil
	}
	secret := on.Grant.Secret
	read := readSecret(secret.Namespace, secret.Name, "whether it exists")
	read.Optional = true
	rules := append(askDelegation(secret.Namespace), read)
	for i := range rules {
		rules[i].Optional = rules[i].Optional && rules[i].Resource.Resource == "secrets"
	}
	return rules
}

// Says returns one verb of a rule in a few words: get secrets "proxy-tls" in namespace "pinniped-concierge".
func Says(verb string, resource schema.GroupResource, namespace, name string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s", verb, resource)
	if name != "" {
		fmt.Fprintf(&text, " %q", name)
	}
	if namespace != "" {
		fmt.Fprintf(&text, " in namespace %q", namespace)
	}
	return text.String()
}
