package kubeconfig

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Target is where clients connect, and what they are to trust there.
type Target struct {
	Endpoint
	CABundle []byte // PEM; empty means the system roots
	// Accepts, if set, is asked before a place gets the CA bundle. Its error becomes the reason why the place is skipped.
	Accepts func(Trust) error
}

// ErrNotKubeconfig means that a file is something else.
var ErrNotKubeconfig = errors.New("this is not a kubeconfig")

// ErrDamaged means that a file looks like a kubeconfig and cannot be read as one, with merge markers in it for example.
// Clients that use it will need the CA bundle when it has been fixed.
var ErrDamaged = errors.New("this looks like a kubeconfig, but cannot be read")

// maxSize bounds what is parsed: a kubeconfig of a thousand clusters has a tenth of it.
const maxSize = 32 << 20

// Outcome is what Rotate did with one entry.
type Outcome string

// Outcomes of Rotate.
const (
	Rotated Outcome = "rotated" // it has the target's CA bundle now
	Current Outcome = "current" // it had it already
	Skipped Outcome = "skipped" // it leads to the target, but its trust is not for us to change; Reason says why
)

// Entry is a cluster or a user of a kubeconfig that leads to the target.
type Entry struct {
	Kind    string  `json:"kind"` // cluster or user
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`
	// Code says the reason of a skipped entry in one word.
	Code SkipCode `json:"code,omitempty"`
}

// SkipCode says why an entry is skipped.
type SkipCode string

// The codes of skipped entries.
const (
	SkipInsecure  SkipCode = "Insecure"  // nothing is verified there, so no CA bundle locks its clients out
	SkipCAFile    SkipCode = "CAFile"    // the CA bundle is in a file
	SkipPlugin    SkipCode = "Plugin"    // the arguments of the credential plugin cannot be changed
	SkipUncertain SkipCode = "Uncertain" // it may lead elsewhere
	// SkipNotAccepted means that Target.Accepts returned an error.
	SkipNotAccepted SkipCode = "NotAccepted"
)

// Rotation is a kubeconfig whose clients of the target trust the target's CA bundle.
type Rotation struct {
	Content []byte  // what the file must hold
	Entries []Entry // those that lead to the target, in the order of their names, clusters first
	// Changes are the rotated entries.
	Changes []Change
}

// Changed reports whether any entry was rotated.
func (r *Rotation) Changed() bool {
	return slices.ContainsFunc(r.Entries, func(e Entry) bool { return e.Outcome == Rotated })
}

// Rotate puts the target's CA bundle into all that leads to the target's endpoint: clusters with that server, and
// users whose credential plugin is "pinniped login" with that --concierge-endpoint. These are the places that Trusts
// returns, and each of them is an entry of the result. Everything else stays as it is, comments and the order of the
// file included; before the result is returned, it is read again and compared, and a difference anywhere else is an
// error.
//
// There may be several targets. A place that leads to more than one of them gets the CA bundle of the first.
//
// What is not a kubeconfig gives ErrNotKubeconfig, one that cannot be read ErrDamaged.
func Rotate(content []byte, to ...Target) (*Rotation, error) {
	return RotateOnly(content, nil, to...)
}

// RotateOnly is Rotate for the clusters and users of some contexts: those for which include returns true. A nil include
// includes everything.
func RotateOnly(content []byte, include func(Trust) bool, to ...Target) (*Rotation, error) {
	for _, target := range to {
		if len(target.CABundle) == 0 {
			continue
		}
		if _, err := CountCertificates(target.CABundle); err != nil {
			return nil, fmt.Errorf("checking the CA bundle: %w", err)
		}
	}
	return rewrite(content, func(before *clientcmdapi.Config) (*clientcmdapi.Config, []planned) {
		return rotateConfig(before, include, to)
	})
}

// rewrite applies to content, in the file's encoding, what decide returns for the kubeconfig in it.
func rewrite(
	content []byte,
	decide func(before *clientcmdapi.Config) (*clientcmdapi.Config, []planned),
) (rotation *Rotation, err error) {
	content, err = inUTF8(content, func(text []byte) ([]byte, error) {
		document, before, err := read(text)
		if err != nil {
			return nil, err
		}
		wanted, entries := decide(before)
		if rotation, err = apply(text, document, wanted, entries); err != nil {
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

func read(content []byte) (*yaml.Node, *clientcmdapi.Config, error) {
	document, err := parse(content)
	if err != nil {
		return nil, nil, err
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, nil, damaged(document)
	}
	return document, config, nil
}

// apply changes what entries say, and reads the result again: it must be what is wanted, and nothing else.
func apply(content []byte, document *yaml.Node, wanted *clientcmdapi.Config, entries []planned) (*Rotation, error) {
	rotation := &Rotation{Content: content}
	for i := range entries {
		rotation.Entries = append(rotation.Entries, entries[i].Entry)
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
			"changing only the CA bundle: the file is written in a way that this program cannot edit; recreate the kubeconfig",
		)
	}
	rotation.Content = after
	for i := range entries {
		if entries[i].Outcome == Rotated {
			rotation.Changes = append(rotation.Changes, entries[i].change())
		}
	}
	return rotation, nil
}

func parse(content []byte) (*yaml.Node, error) {
	if len(content) > maxSize {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrNotKubeconfig, len(content))
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		if looksLikeKubeconfig(content) {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil, fmt.Errorf("%w: %w", ErrNotKubeconfig, err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		if looksLikeKubeconfig(content) {
			return nil, ErrDamaged
		}
		return nil, ErrNotKubeconfig
	}
	root := document.Content[0]
	_, kind := field(root, "kind")
	_, clusters := field(root, "clusters")
	if kind != nil && kind.Value != "Config" || kind == nil && clusters == nil {
		return nil, ErrNotKubeconfig
	}
	return root, nil
}

// rotateConfig returns what the kubeconfig must say in the end, and what has to be done for it.
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
			id := one.kind + "/" + one.name
			other, claimed := claims[id]
			better := !claimed || other.lead == perhapsHere && one.lead == leadsHere
			if better && (include == nil || include(one.trust())) {
				claims[id] = claim{one, target}
			}
		}
	}
	var entries []planned
	for _, id := range names(claims) { // clusters come before users
		entries = append(entries, claims[id].plan(after, claims[id].target))
	}
	return after, entries
}

// parts are what a kubeconfig has at the beginning of a line, or in JSON behind other parts. foreign is what shows
// that a file with them is a text about kubeconfigs, a script that writes one, or a template for one.
var (
	parts   = regexp.MustCompile(`(?m)(?:^|[{,])\s*"?(clusters|contexts|users|current-context)"?\s*:`)
	foreign = regexp.MustCompile("(?m)\\A#!|^\\s*```|\\{\\{")
)

// looksLikeKubeconfig says whether a file that cannot be read as YAML may have been a kubeconfig: it has two of the parts.
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

// Change is what Rotate did to one entry. It has no secret.
type Change struct {
	Kind     string // cluster or user
	Name     string
	Server   string
	From, To []byte // the CA bundle before and after, PEM
}

func (p planned) change() Change {
	return Change{Kind: p.Kind, Name: p.Name, Server: p.server, From: p.from, To: p.to}
}

func nilIfEmpty(bundle []byte) []byte {
	if len(bundle) == 0 {
		return nil
	}
	return bundle
}
