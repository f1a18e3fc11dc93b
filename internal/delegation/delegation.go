// Package delegation decides whether a Secret may be used from another namespace.
//
// The owner of the Secret permits it with a TLSCertificateDelegation (projectcontour.io/v1), which ingress controllers
// support as well. It is in the Secret's namespace and lists names of Secrets, each with the namespaces that may use
// it.
//
// Decide makes the decision, and Grant.Objects returns everything that an owner has to create. Both are pure: the agent
// and `pinniped explain` read the cluster themselves. Poller queries the API server for the agent every second.
package delegation

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The resource type TLSCertificateDelegation.
const (
	Kind     = "TLSCertificateDelegation"
	Group    = "projectcontour.io"
	Version  = "v1"
	Plural   = "tlscertificatedelegations"
	everyone = "*"
)

// Resource returns the API resource of TLSCertificateDelegations.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: Plural}
}

// SecretName parses NAME or NAMESPACE/NAME of a Secret. own is the namespace of a NAME alone. Only NAMESPACE/NAME is
// validated.
func SecretName(text, own string) (types.NamespacedName, error) {
	namespace, name, foreign := strings.Cut(text, "/")
	if !foreign {
		return types.NamespacedName{Namespace: own, Name: text}, nil
	}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return types.NamespacedName{}, fmt.Errorf("%.100q is not NAMESPACE/NAME: %.100q cannot be a namespace",
			text, namespace)
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return types.NamespacedName{}, fmt.Errorf("%.100q is not NAMESPACE/NAME: %.100q cannot be the name of a Secret",
			text, name)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// Delegation holds the relevant parts of a TLSCertificateDelegation.
type Delegation struct {
	Namespace, Name string
	Deleting        bool // it permits nothing any more
	Entries         []Entry
	Problem         string // why it has no entries
}

// Entry permits some namespaces to use one Secret.
type Entry struct {
	SecretName string
	Targets    []string
	Problem    string // why it permits nothing
}

// ParseList parses a list of TLSCertificateDelegations in JSON. A malformed part of an object permits nothing, and does
// not affect the others. It returns an error only if the JSON is not a list of objects.
func ParseList(list []byte) ([]Delegation, error) {
	var decoded struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(list, &decoded); err != nil {
		return nil, fmt.Errorf("decoding a list of %ss: %w", Kind, err)
	}
	all := make([]Delegation, 0, len(decoded.Items))
	for _, item := range decoded.Items {
		// A map, because encoding/json matches struct fields case-insensitively.
		var object map[string]any
		if err := json.Unmarshal(item, &object); err != nil {
			return nil, fmt.Errorf("decoding a %s: %w", Kind, err)
		}
		all = append(all, Parse(object))
	}
	return all, nil
}

// Parse parses one TLSCertificateDelegation.
func Parse(object map[string]any) Delegation {
	metadata, _ := object["metadata"].(map[string]any)
	d := Delegation{Deleting: metadata["deletionTimestamp"] != nil}
	d.Namespace, _ = metadata["namespace"].(string)
	d.Name, _ = metadata["name"].(string)
	spec, ok := object["spec"].(map[string]any)
	if !ok {
		d.Problem = "it has no spec"
		return d
	}
	entries, ok := spec["delegations"].([]any)
	if !ok {
		d.Problem = "spec.delegations is not a list"
		return d
	}
	for i, item := range entries {
		entry, err := parseEntry(item)
		if err != nil {
			entry.Problem = fmt.Sprintf("spec.delegations[%d]: %v", i, err)
		}
		d.Entries = append(d.Entries, entry)
	}
	return d
}

func parseEntry(item any) (Entry, error) {
	fields, ok := item.(map[string]any)
	if !ok {
		return Entry{}, errors.New("it is not an object")
	}
	var entry Entry
	if entry.SecretName, ok = fields["secretName"].(string); !ok || entry.SecretName == "" {
		return entry, errors.New("secretName is missing, empty or not a string")
	}
	targets, ok := fields["targetNamespaces"].([]any)
	if !ok {
		return entry, errors.New("targetNamespaces is not a list")
	}
	for _, target := range targets {
		namespace, ok := target.(string)
		if !ok {
			entry.Targets = nil
			return entry, errors.New("targetNamespaces has a non-string entry")
		}
		entry.Targets = append(entry.Targets, namespace)
	}
	return entry, nil
}

// Decision is the result of Decide.
type Decision struct {
	Permitted bool
	// By is the first delegation that permits it.
	By types.NamespacedName
	// NearMisses are the delegations that do not permit it but seem to be intended to.
	NearMisses []NearMiss
}

// Decide reports whether any delegation permits the use of secret from the namespace target: it is in the Secret's
// namespace, is not being deleted, names exactly that Secret, and lists the target, or "*" alone. The result does not
// depend on whether the Secret exists.
func Decide(secret types.NamespacedName, target string, all []Delegation) Decision {
	var decision Decision
	for _, d := range all {
		for _, entry := range d.Entries {
			if !decision.Permitted && d.permits(entry, secret, target) {
				decision.Permitted, decision.By = true, types.NamespacedName{Namespace: d.Namespace, Name: d.Name}
			}
		}
		decision.NearMisses = append(decision.NearMisses, nearMisses(d, secret, target)...)
	}
	return decision
}

func (d Delegation) permits(entry Entry, secret types.NamespacedName, target string) bool {
	return d.Namespace == secret.Namespace && !d.Deleting && entry.Problem == "" &&
		entry.SecretName == secret.Name && entry.reaches(target)
}

// reaches reports whether the entry includes a namespace. It ignores "*" next to other names: the owner then wants to
// limit the namespaces.
func (e Entry) reaches(target string) bool {
	if target == "" || target == everyone {
		return false
	}
	return slices.Contains(e.Targets, target) || len(e.Targets) == 1 && e.Targets[0] == everyone
}

// Outcome says whether a Secret of another namespace may be used, and if not, why not.
type Outcome string

// The values of Outcome.
const (
	// Permitted means that a delegation permits it and RBAC lets the agent read the Secret.
	Permitted Outcome = "Permitted"
	// NotDelegated means that no delegation permits the use of the Secret.
	NotDelegated Outcome = "NotDelegated"
	// NoDelegations means that the cluster does not serve TLSCertificateDelegations.
	NoDelegations Outcome = "NoDelegations"
	// NotVisible means that the agent lacks permission to list delegations or to create access reviews.
	NotVisible Outcome = "NotVisible"
	// NotReadable means that a delegation permits it, but RBAC does not let the agent read the Secret.
	NotReadable Outcome = "NotReadable"
)

// Refusal returns the finding for a Secret that may not be used from the agent's namespace, target. It does not reveal
// whether the Secret exists. The outcome must not be Permitted.
func Refusal(outcome Outcome, secret types.NamespacedName, target string) certs.Finding {
	why, hint := "", fmt.Sprintf(
		`have the owner of namespace %q apply what "pinniped explain %s" prints, or run "pinniped ip-tls delegate %s --to %s"`,
		secret.Namespace,
		secret,
		secret,
		target,
	)
	switch outcome {
	case NotDelegated:
		why = fmt.Sprintf("no %s in namespace %q delegates it to namespace %q", Kind, secret.Namespace, target)
	case NoDelegations:
		why = fmt.Sprintf("the cluster has no %ss (%s/%s) that could permit it", Kind, Group, Version)
	case NotVisible:
		why = "RBAC does not let the agent check whether the owner of the Secret permits this"
		hint = fmt.Sprintf(
			"apply the agent's manifests (deploy/concierge) again: its ClusterRole must permit get, list and watch of %s.%s, "+
				"and create of selfsubjectaccessreviews.authorization.k8s.io", Plural, Group)
	case NotReadable:
		why = "a " + Kind + " permits it, but RBAC does not let the agent's service account get, list and watch that Secret"
	case Permitted:
	}
	finding := certs.NewFinding(certs.SecretNotPermitted,
		fmt.Sprintf("Secret %q cannot be used from namespace %q: %s", secret, target, why))
	finding.Hint = hint
	return finding
}
