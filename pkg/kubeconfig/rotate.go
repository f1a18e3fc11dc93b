package kubeconfig

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Target is an endpoint, and the CA bundle that its clients should trust.
type Target struct {
	Endpoint
	CABundle []byte // PEM; empty for the system roots
	// Accepts, if set, is called before a place gets the CA bundle. If it returns an error, the place is skipped.
	Accepts func(Trust) error
}

// ErrNotKubeconfig means that a file is not a kubeconfig.
var ErrNotKubeconfig = errors.New("this is not a kubeconfig")

// ErrDamaged means that a file looks like a kubeconfig but is invalid, for example because of merge markers. Once it is
// fixed, its clients need the CA bundle.
var ErrDamaged = errors.New("this looks like a kubeconfig, but cannot be read")

// maxSize limits what is parsed; a kubeconfig of a thousand clusters is ten times smaller.
const maxSize = 32 << 20

// Outcome is the result of Rotate for one entry.
type Outcome string

// Outcomes of Rotate.
const (
	Rotated Outcome = "rotated" // it has the target's CA bundle now
	Current Outcome = "current" // it already had the target's CA bundle
	Skipped Outcome = "skipped" // it leads to the target, but its CA bundle cannot be changed; see Reason
)

// Entry is a cluster or user of a kubeconfig that leads to the target.
type Entry struct {
	Kind    string  `json:"kind"` // cluster or user
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`
	// Code is the reason why an entry was skipped.
	Code SkipCode `json:"code,omitempty"`
}

// SkipCode says why an entry was skipped.
type SkipCode string

// The codes of skipped entries.
const (
	SkipInsecure  SkipCode = "Insecure"  // nothing is verified, so no CA bundle breaks its clients
	SkipCAFile    SkipCode = "CAFile"    // the CA bundle is in a file
	SkipPlugin    SkipCode = "Plugin"    // the arguments of the credential plugin cannot be changed
	SkipUncertain SkipCode = "Uncertain" // it may lead elsewhere
	// SkipNotAccepted means that Target.Accepts returned an error.
	SkipNotAccepted SkipCode = "NotAccepted"
)

// Rotation is a kubeconfig whose clients trust the target's CA bundle.
type Rotation struct {
	Content []byte  // the new content of the file
	Entries []Entry // entries that lead to the target: clusters, then users, sorted by name
	// Changes are the rotated entries.
	Changes []Change
}

// Changed reports whether any entry was rotated.
func (r *Rotation) Changed() bool {
	return slices.ContainsFunc(r.Entries, func(e Entry) bool { return e.Outcome == Rotated })
}

// Rotate writes the target's CA bundle into all entries that lead to the target's endpoint: clusters with that server,
// and users whose credential plugin is "pinniped login" with that --concierge-endpoint. The result lists all of them,
// which are the ones that Trusts returns. Everything else stays unchanged, including comments and order: the result is
// parsed and compared, and any other difference is an error.
//
// If an entry leads to several targets, it gets the CA bundle of the first.
//
// Rotate returns ErrNotKubeconfig for another file, and ErrDamaged for an invalid kubeconfig.
func Rotate(content []byte, to ...Target) (*Rotation, error) {
	return RotateOnly(content, nil, to...)
}

// RotateOnly is Rotate for the clusters and users for which include returns true. A nil include includes everything.
func RotateOnly(content []byte, include func(Trust) bool, to ...Target) (rotation *Rotation, err error) {
	for _, target := range to {
		if len(target.CABundle) == 0 {
			continue
		}
		if _, err := CountCertificates(target.CABundle); err != nil {
			return nil, fmt.Errorf("checking the CA bundle: %w", err)
		}
	}
	content, err = inUTF8(content, func(text []byte) ([]byte, error) {
		root, before, err := parse(text)
		if err != nil {
			return nil, err
		}
		wanted, entries := rotateConfig(before, include, to)
		if rotation, err = apply(text, root, wanted, entries); err != nil {
			return nil, err
		}
		return rotation.Content, nil
	})
	if err != nil {
		return nil, err
	}
	rotation.Content = content
	return rotation, nil
}

// apply applies entries, and parses the result: it must be exactly what is wanted.
func apply(content []byte, document *yaml.Node, wanted *clientcmdapi.Config, entries []planned) (*Rotation, error) {
	rotation := &Rotation{Content: content}
	for _, entry := range entries {
		rotation.Entries = append(rotation.Entries, entry.Entry)
	}
	if !rotation.Changed() {
		return rotation, nil
	}
	after, err := edit(content, document, entries)
	if err != nil {
		return nil, err
	}
	written, err := clientcmd.Load(after)
	if err != nil {
		return nil, fmt.Errorf("reading the changed kubeconfig again: %w", err)
	}
	if !equality.Semantic.DeepEqual(wanted, written) {
		return nil, errors.New(
			"changing only the CA bundle: this program cannot edit the file's YAML; recreate the kubeconfig",
		)
	}
	rotation.Content = after
	for _, entry := range entries {
		if entry.Outcome == Rotated {
			rotation.Changes = append(rotation.Changes, Change{
				Kind: entry.Kind, Name: entry.Name, Server: entry.place.Server, From: entry.place.CABundle, To: entry.to,
			})
		}
	}
	return rotation, nil
}

// parse parses a kubeconfig. It returns ErrNotKubeconfig for another file, and ErrDamaged for an invalid kubeconfig.
func parse(content []byte) (*yaml.Node, *clientcmdapi.Config, error) {
	if len(content) > maxSize {
		return nil, nil, fmt.Errorf("%w: it has %d bytes", ErrNotKubeconfig, len(content))
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		if looksLikeKubeconfig(content) {
			return nil, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil, nil, fmt.Errorf("%w: %w", ErrNotKubeconfig, err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		if looksLikeKubeconfig(content) {
			return nil, nil, ErrDamaged
		}
		return nil, nil, ErrNotKubeconfig
	}
	root := document.Content[0]
	_, kind := field(root, "kind")
	_, clusters := field(root, "clusters")
	if kind != nil && kind.Value != "Config" || kind == nil && clusters == nil {
		return nil, nil, ErrNotKubeconfig
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, nil, damaged(root)
	}
	return root, config, nil
}

// rotateConfig returns the rotated kubeconfig, and how to change each entry.
func rotateConfig(
	before *clientcmdapi.Config,
	include func(Trust) bool,
	to []Target,
) (*clientcmdapi.Config, []planned) {
	after := before.DeepCopy()
	type claim struct {
		place
		target Target
	}
	claims := map[string]claim{}
	for _, target := range to {
		for _, one := range places(before, target.Endpoint) {
			id := one.Kind + "/" + one.Name
			other, claimed := claims[id]
			better := !claimed || other.lead == perhapsHere && one.lead == leadsHere
			if better && (include == nil || include(one.Trust)) {
				claims[id] = claim{one, target}
			}
		}
	}
	var entries []planned
	for _, id := range slices.Sorted(maps.Keys(claims)) { // clusters come before users
		entries = append(entries, claims[id].plan(after, claims[id].target))
	}
	return after, entries
}

// parts matches keys of a kubeconfig at the start of a line, or in JSON. foreign matches what shows that a file with
// them is a document about kubeconfigs, a script that writes one, or a template.
var (
	parts   = regexp.MustCompile(`(?m)(?:^|[{,])\s*"?(clusters|contexts|users|current-context)"?\s*:`)
	foreign = regexp.MustCompile("(?m)\\A#!|^\\s*```|\\{\\{")
)

// looksLikeKubeconfig reports whether a file that is not valid YAML may have been a kubeconfig: it has two of the
// parts.
func looksLikeKubeconfig(content []byte) bool {
	if foreign.Match(content) {
		return false
	}
	seen := map[string]bool{}
	for _, match := range parts.FindAllSubmatch(content, -1) {
		seen[string(match[1])] = true
	}
	return len(seen) > 1
}

// Change is what Rotate changed in one entry. It contains no secrets.
type Change struct {
	Kind     string // cluster or user
	Name     string
	Server   string
	From, To []byte // the CA bundle before and after, PEM
}
