package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
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

func (r *Rotation) content() []byte { return r.Content }

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

// Change is what Rotate changed in one entry. It contains no secrets.
type Change struct {
	Kind     string // cluster or user
	Name     string
	Server   string
	From, To []byte // the CA bundle before and after, PEM
}

// RotateFile is Rotate for the file at path, which it replaces atomically with the same permissions and owner. It holds
// kubectl's lock (path with ".lock" appended), and waits for it until ctx ends. If dryRun is true, it changes nothing.
func RotateFile(ctx context.Context, path string, to Target, dryRun bool) (*Rotation, error) {
	return UpdateFile(ctx, path, FileUpdate{DryRun: dryRun, Change: func(content []byte) (*Rotation, error) {
		rotation, err := Rotate(content, to)
		if err != nil {
			return nil, err
		}
		return rotation, CheckCAFiles(path, content, rotation, to)
	}})
}

// FileUpdate says how UpdateFile changes a file.
type FileUpdate struct {
	// Change returns the new content. It is called twice: without the lock, to find out whether anything changes, and
	// then while the file is locked.
	Change func(content []byte) (*Rotation, error)
	DryRun bool // the file stays unchanged
}

// UpdateFile changes the kubeconfig at path. It replaces and locks the file as RotateFile does.
func UpdateFile(ctx context.Context, path string, update FileUpdate) (*Rotation, error) {
	read := func() (*Rotation, *atomicfile.File, error) {
		return readAndChange(path, "rotating", true, update.Change)
	}
	rotation, file, err := read() // most files of a fleet do not change, and need no lock
	if err != nil {
		return nil, err
	}
	file.Close()
	if update.DryRun || !rotation.Changed() {
		return rotation, nil
	}
	return replaceLocked(ctx, path, read)
}

// replaceLocked replaces the file that read returns with the changed content, under kubectl's lock.
func replaceLocked[T interface {
	Changed() bool
	content() []byte
}](ctx context.Context, path string, read func() (T, *atomicfile.File, error)) (none T, err error) {
	unlock, err := lock(ctx, path)
	if err != nil {
		return none, err
	}
	defer unlock()
	done, file, err := read()
	if err != nil {
		return none, err
	}
	defer file.Close()
	if done.Changed() {
		if err := file.Replace(done.content()); err != nil {
			return none, fmt.Errorf("writing kubeconfig %q: %w", path, err)
		}
	}
	return done, nil
}

// readAndChange reads the kubeconfig at path, and calls change. It leaves the file open if there is no error.
func readAndChange[T any](
	path, doing string,
	mustExist bool,
	change func([]byte) (T, error),
) (none T, file *atomicfile.File, err error) {
	file, err = atomicfile.Open(path, maxSize)
	if err == nil && mustExist && !file.Exists {
		file.Close()
		err = fs.ErrNotExist
	}
	if err != nil {
		return none, nil, fmt.Errorf("reading kubeconfig %q: %w", path, explainRead(err))
	}
	done, err := change(file.Content)
	if err != nil {
		file.Close()
		return none, nil, fmt.Errorf("%s kubeconfig %q: %w", doing, path, err)
	}
	return done, file, nil
}

// CheckCAFiles marks entries of a rotation as current if their CA file, which Rotate does not read, already contains
// the target's CA bundle. content is that of the file at path.
func CheckCAFiles(path string, content []byte, rotation *Rotation, to ...Target) error {
	if !slices.ContainsFunc(rotation.Entries, func(e Entry) bool { return e.Code == SkipCAFile }) {
		return nil
	}
	config, err := loadText(path, content)
	if err == nil {
		err = resolvePaths(path, config)
	}
	if err != nil {
		return err
	}
	for _, target := range to {
		if len(target.CABundle) == 0 {
			continue
		}
		for _, trust := range Trusts(config, target.Endpoint) {
			at := slices.IndexFunc(
				rotation.Entries,
				func(e Entry) bool { return e.Kind == trust.Kind && e.Name == trust.Name && e.Code == SkipCAFile },
			)
			if at >= 0 && trust.Err == nil && hasAll(trust.CABundle, target.CABundle) {
				rotation.Entries[at] = Entry{Kind: trust.Kind, Name: trust.Name, Outcome: Current}
			}
		}
	}
	return nil
}

// maxNamed limits files that a kubeconfig names, such as a CA bundle.
const maxNamed = 8 << 20

// ReadNamed reads a file that a kubeconfig names: a CA bundle, a certificate or a token. It must be a regular file, so
// that reading cannot block or be endless.
func ReadNamed(path string) ([]byte, error) { return atomicfile.ReadFile(path, maxNamed) }

// ReadInput is ReadNamed for a file that a user names, which may be a pipe.
func ReadInput(path string) ([]byte, error) { return atomicfile.ReadInput(path, maxNamed) }

// explainRead adds ErrNotKubeconfig to errors about files that cannot be a kubeconfig.
func explainRead(err error) error {
	if errors.Is(err, atomicfile.ErrNotRegular) || errors.Is(err, atomicfile.ErrTooLarge) {
		return fmt.Errorf("%w: %w", ErrNotKubeconfig, rootCause(err))
	}
	return err
}
