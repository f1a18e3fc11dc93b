package kubeconfig

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Impersonation is the user that a client impersonates: the fields as, as-uid, as-groups and as-user-extra of a
// kubeconfig's user.
type Impersonation struct {
	User   string              `json:"user"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

const extraHeader = "impersonate-extra-"

// ParseImpersonation parses the headers that a cluster requires with every request. It returns an error for headers
// that are not about impersonation, because a kubeconfig cannot contain them.
func ParseImpersonation(headers map[string][]string) (*Impersonation, error) {
	i := &Impersonation{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		values := headers[name]
		lower := strings.ToLower(name)
		key, extra := strings.CutPrefix(lower, extraHeader)
		switch {
		case len(values) == 0:
		case lower == "impersonate-user":
			i.User = values[0]
		case lower == "impersonate-uid":
			i.UID = values[0]
		case lower == "impersonate-group":
			i.Groups = slices.Sorted(slices.Values(values))
		case extra:
			decoded, err := url.PathUnescape(key)
			if err != nil {
				return nil, fmt.Errorf("reading the name of header %q: %w", name, err)
			}
			if i.Extra == nil {
				i.Extra = map[string][]string{}
			}
			i.Extra[decoded] = slices.Sorted(slices.Values(values))
		default:
			return nil, fmt.Errorf("the cluster requires header %q on every request, but a kubeconfig cannot set headers", name)
		}
	}
	if i.User == "" {
		return nil, errors.New("the cluster does not name a user to impersonate")
	}
	return i, nil
}

// ImpersonationOf returns the impersonation of a kubeconfig's user, or nil.
func ImpersonationOf(user *clientcmdapi.AuthInfo) *Impersonation {
	if user == nil || user.Impersonate == "" {
		return nil
	}
	i := &Impersonation{
		User: user.Impersonate, UID: user.ImpersonateUID, Groups: slices.Sorted(slices.Values(user.ImpersonateGroups)),
	}
	for key, values := range user.ImpersonateUserExtra {
		if i.Extra == nil {
			i.Extra = map[string][]string{}
		}
		i.Extra[key] = slices.Sorted(slices.Values(values))
	}
	return i
}

// SetOn sets the impersonation of a kubeconfig's user.
func (i *Impersonation) SetOn(user *clientcmdapi.AuthInfo) {
	user.Impersonate, user.ImpersonateUID = i.User, i.UID
	user.ImpersonateGroups, user.ImpersonateUserExtra = i.Groups, i.Extra
}

// Digest returns a short hash of the impersonation.
func (i *Impersonation) Digest() string {
	text, err := json.Marshal(i) // sorts the keys of maps; the values are sorted already
	if err != nil {
		panic(err) // text can always be encoded
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// Changed describes how now differs from i. lost is true if the cluster now rejects clients that impersonate i, because
// the user has lost something.
func (i *Impersonation) Changed(now *Impersonation) (description string, lost bool) {
	if i.User != now.User {
		return fmt.Sprintf("the kubeconfig is for user %q, but you are %q", i.User, now.User), true
	}
	var parts []string
	gone, added := differ(i.Groups, now.Groups)
	if len(gone) > 0 {
		parts, lost = append(parts, "without the groups "+some(gone)), true
	}
	if len(added) > 0 {
		parts = append(parts, "with the new groups "+some(added))
	}
	if i.UID != now.UID {
		parts, lost = append(parts, "with another UID"), lost || i.UID != ""
	}
	gone, added = differ(flat(i.Extra), flat(now.Extra))
	if len(gone)+len(added) > 0 {
		parts, lost = append(parts, "with other extras"), lost || len(gone) > 0
	}
	if len(parts) == 0 {
		return "", false
	}
	return "you now log in " + strings.Join(parts, ", "), lost
}

func differ(before, after []string) (gone, added []string) {
	gone = slices.DeleteFunc(slices.Clone(before), func(s string) bool { return slices.Contains(after, s) })
	added = slices.DeleteFunc(slices.Clone(after), func(s string) bool { return slices.Contains(before, s) })
	return gone, added
}

func flat(extra map[string][]string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		for _, value := range extra[key] {
			all = append(all, key+"="+value)
		}
	}
	return all
}

// some lists the first few names.
func some(names []string) string {
	const limit = 5
	quoted := make([]string, 0, limit)
	for _, name := range names[:min(limit, len(names))] {
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	text := strings.Join(quoted, ", ")
	if more := len(names) - limit; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
