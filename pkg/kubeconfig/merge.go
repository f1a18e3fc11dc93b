package kubeconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// Outcomes of Merge, in addition to Current.
const (
	Added   Outcome = "added"   // the file did not have it
	Updated Outcome = "updated" // the file had an older version of it
)

const kindContext = "context"

// Merged is a kubeconfig with the merged entries.
type Merged struct {
	Content []byte  // the new content of the file
	Entries []Entry // the merged entries: clusters, users, contexts, each sorted by name
	// CurrentContext is the file's new current context, and CurrentContextBefore the old one.
	CurrentContext, CurrentContextBefore string
	// Before and After contain only the merged entries and the current context.
	Before, After *clientcmdapi.Config
}

func (m *Merged) content() []byte { return m.Content }

// Changed reports whether the content differs from before.
func (m *Merged) Changed() bool {
	return m.CurrentContext != m.CurrentContextBefore ||
		slices.ContainsFunc(m.Entries, func(e Entry) bool { return e.Outcome != Current })
}

// ForeignEntryError means that a kubeconfig has an entry with the name of a new one that this program has not created.
type ForeignEntryError struct {
	Kind, Name string
	Reason     string
}

func (e *ForeignEntryError) Error() string {
	return fmt.Sprintf("the existing %s %q is different and stays unchanged: %s", e.Kind, e.Name, e.Reason)
}

// Merge adds the clusters, users and contexts of made to a kubeconfig. Everything else stays unchanged, byte for byte:
// other entries, comments, and the order. If setCurrent is true, the current context becomes that of made.
//
// An entry of the same name is replaced if Build created it: a user that runs "pinniped login" or reads the same token
// file, a context of such a user, or a cluster that only such contexts use. For any other, Merge returns a
// ForeignEntryError, and for one that leads to another cluster, an OtherClusterError. Settings that users added to a
// replaced entry are kept: a context's namespace and extensions, a plugin's environment and arguments, a cluster's
// proxy-url. Equal entries stay unchanged.
//
// Merge returns ErrNotKubeconfig for another file, and ErrDamaged for an invalid kubeconfig. Empty content is an empty
// kubeconfig.
func Merge(content []byte, made *clientcmdapi.Config, setCurrent bool) (*Merged, error) {
	made, err := WithDefaults(made)
	if err != nil {
		return nil, err
	}
	var merged *Merged
	content, err = inUTF8(content, func(text []byte) ([]byte, error) {
		if merged, err = merge(text, made, setCurrent); err != nil {
			return nil, err
		}
		return merged.Content, nil
	})
	if err != nil {
		return nil, err
	}
	merged.Content = content
	return merged, nil
}

func merge(content []byte, made *clientcmdapi.Config, setCurrent bool) (*Merged, error) {
	if blank(content) {
		content = append(endLine(bytes.Clone(content)), "apiVersion: v1\nkind: Config\n"...)
	}
	root, before, err := parse(content)
	if err != nil {
		return nil, err
	}
	if err := refuseForeign(before, made); err != nil {
		return nil, err
	}
	if err := refuseOtherCluster(before, made); err != nil {
		return nil, err
	}
	wanted, entries := mergeConfig(before, made, setCurrent)
	if err := refuseRelative(wanted, made); err != nil {
		return nil, err
	}
	merged := &Merged{
		Content: content, Entries: entries,
		CurrentContext: wanted.CurrentContext, CurrentContextBefore: before.CurrentContext,
		Before: only(before, made), After: only(wanted, made),
	}
	if !merged.Changed() {
		return merged, nil
	}
	after, err := put(content, root, wanted, merged)
	if err != nil {
		return nil, err
	}
	written, err := clientcmd.Load(after)
	if err != nil {
		return nil, fmt.Errorf("reading the merged kubeconfig again: %w", err)
	}
	if !equality.Semantic.DeepEqual(wanted, written) {
		return nil, errors.New(
			"merging: this program cannot edit the file's YAML (due to anchors or aliases, for example)",
		)
	}
	merged.Content = after
	return merged, nil
}

// mergeConfig returns the merged kubeconfig, and the outcome of each entry.
func mergeConfig(before, made *clientcmdapi.Config, setCurrent bool) (*clientcmdapi.Config, []Entry) {
	after := before.DeepCopy()
	made = made.DeepCopy()
	entries := slices.Concat(
		mergeEntries(kindCluster, after.Clusters, made.Clusters, keepCluster),
		mergeEntries(kindUser, after.AuthInfos, made.AuthInfos, keepUser),
		mergeEntries(kindContext, after.Contexts, made.Contexts, keepContext),
	)
	if setCurrent {
		after.CurrentContext = made.CurrentContext
	}
	return after, entries
}

// mergeEntries puts the made entries into all. keep copies user settings from a replaced entry.
func mergeEntries[T any](kind string, all, made map[string]*T, keep func(old, wanted *T)) []Entry {
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(made)) {
		entry := Entry{Kind: kind, Name: name, Outcome: Added}
		if old, had := all[name]; had {
			keep(old, made[name])
			entry.Outcome = Updated
			if equality.Semantic.DeepEqual(old, made[name]) {
				entry.Outcome = Current
			}
		}
		entries = append(entries, entry)
		all[name] = made[name]
	}
	return entries
}

// only returns the entries of config that made also has.
func only(config, made *clientcmdapi.Config) *clientcmdapi.Config {
	some := config.DeepCopy()
	maps.DeleteFunc(some.Clusters, func(name string, _ *clientcmdapi.Cluster) bool { return made.Clusters[name] == nil })
	maps.DeleteFunc(
		some.AuthInfos,
		func(name string, _ *clientcmdapi.AuthInfo) bool { return made.AuthInfos[name] == nil },
	)
	maps.DeleteFunc(some.Contexts, func(name string, _ *clientcmdapi.Context) bool { return made.Contexts[name] == nil })
	return some
}

func blank(content []byte) bool {
	for line := range bytes.Lines(content) {
		if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' {
			return false
		}
	}
	return true
}

// refuseForeign returns an error if an entry with a name in made was not created by Build.
func refuseForeign(before, made *clientcmdapi.Config) error {
	for _, name := range slices.Sorted(maps.Keys(made.AuthInfos)) {
		if old, ok := before.AuthInfos[name]; ok && !ours(old, made.AuthInfos[name]) {
			return &ForeignEntryError{Kind: kindUser, Name: name, Reason: "it does not log in with \"pinniped login\""}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(made.Contexts)) {
		old, wanted := before.Contexts[name], made.Contexts[name]
		if old == nil || old.AuthInfo == wanted.AuthInfo && old.Cluster == wanted.Cluster {
			continue
		}
		if user := before.AuthInfos[old.AuthInfo]; user != nil && !ours(user, made.AuthInfos[wanted.AuthInfo]) {
			return &ForeignEntryError{
				Kind: kindContext, Name: name,
				Reason: fmt.Sprintf("its user %q does not log in with \"pinniped login\"", old.AuthInfo),
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(made.Clusters)) {
		old := before.Clusters[name]
		if old == nil || SameEndpoint(old.Server, made.Clusters[name].Server) {
			continue
		}
		for _, contextName := range slices.Sorted(maps.Keys(before.Contexts)) {
			other := before.Contexts[contextName]
			if other == nil || other.Cluster != name || made.Contexts[contextName] != nil {
				continue
			}
			if user := before.AuthInfos[other.AuthInfo]; user == nil || !RunsPinniped(user) {
				return &ForeignEntryError{
					Kind: kindCluster, Name: name,
					Reason: fmt.Sprintf("context %q uses it with the server %s", contextName, old.Server),
				}
			}
		}
	}
	return nil
}

// ours reports whether Build may have created user, which wanted is to replace.
func ours(user, wanted *clientcmdapi.AuthInfo) bool {
	if user == nil || RunsPinniped(user) {
		return true
	}
	return wanted != nil && wanted.TokenFile != "" && user.TokenFile == wanted.TokenFile
}

// RunsPinniped reports whether a user's credential plugin is "pinniped login", of this program or of upstream Pinniped.
func RunsPinniped(user *clientcmdapi.AuthInfo) bool {
	if user.Exec == nil {
		return false
	}
	args := user.Exec.Args
	at := slices.Index(args, "login")
	return at >= 0 && at+1 < len(args) && (args[at+1] == "static" || args[at+1] == "oidc")
}

// MergeFile is Merge for the file at path, which it replaces atomically with the same permissions and owner. If the
// file does not exist, it is created with mode 0600, and its directory as well. MergeFile holds kubectl's lock (path
// with ".lock" appended), and waits for it until ctx ends.
func MergeFile(ctx context.Context, path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("creating the folder for %q: %w", path, err)
	}
	return replaceLocked(ctx, path, func() (*Merged, *atomicfile.File, error) {
		return readAndMerge(path, made, setCurrent)
	})
}

// PreviewMerge is MergeFile without writing or locking.
func PreviewMerge(path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, error) {
	merged, file, err := readAndMerge(path, made, setCurrent)
	if err != nil {
		return nil, err
	}
	file.Close()
	return merged, nil
}

func readAndMerge(path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, *atomicfile.File, error) {
	return readAndChange(path, "merging into", false, func(content []byte) (*Merged, error) {
		return Merge(content, made, setCurrent)
	})
}
