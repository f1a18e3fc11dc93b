package satoken

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Identity is an authenticated user.
type Identity struct {
	// Authenticator authenticated the user, such as "JWTAuthenticator/people".
	Authenticator string

	Username string
	UID      string
	Groups   []string
	Extra    map[string][]string
}

// NamePrefix is the name prefix of all objects of this package. The admission policy in deploy/ depends on it.
const NamePrefix = "pinniped-user-"

// credentialIDExtra is the extra with the ID of the credential of a request: for JWTs, the claim "jti".
const credentialIDExtra = "authentication.kubernetes.io/credential-id"

// normal returns the identity as the API server reads it from headers, or an error if headers cannot carry it. It drops
// the ID of the token, which differs for each session, while all sessions of a user share the account.
func (i Identity) normal() (Identity, error) {
	if i.Username == "" {
		return i, errors.New("the username is empty")
	}
	if slices.Contains(i.Groups, "") {
		return i, errors.New("the name of a group is empty")
	}
	groups := slices.Clone(i.Groups)
	slices.Sort(groups)
	extra := map[string][]string{}
	for key, values := range i.Extra {
		if slices.Contains(values, "") {
			return i, fmt.Errorf("a value of extra key %q is empty", key)
		}
		lower := strings.ToLower(key) // header names are case-insensitive
		if lower != credentialIDExtra && len(values) > 0 {
			extra[lower] = append(extra[lower], values...)
		}
	}
	for key, values := range extra {
		slices.Sort(values)
		extra[key] = slices.Compact(values)
	}
	i.Groups, i.Extra = slices.Compact(groups), extra
	return i, nil
}

// name returns the name of the user's objects: a hash. It includes the namespace, because ClusterRoles of several
// installations share a scope, and the authenticator and groups, so that no token gains what another login proved. Each
// text is preceded by its length, so that different identities never hash the same input.
func (i Identity) name(namespace string) string {
	hash := sha256.New()
	for _, text := range append([]string{namespace, i.Authenticator, i.Username, i.UID}, i.Groups...) {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(text)))
		hash.Write(length[:])
		hash.Write([]byte(text))
	}
	return NamePrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash.Sum(nil)))
}

// headers returns the impersonation headers with which the account's token acts as the user.
func (i Identity) headers() map[string][]string {
	headers := map[string][]string{"Impersonate-User": {i.Username}}
	if i.UID != "" {
		headers["Impersonate-Uid"] = []string{i.UID}
	}
	if len(i.Groups) > 0 {
		headers["Impersonate-Group"] = i.Groups
	}
	for _, key := range slices.Sorted(maps.Keys(i.Extra)) {
		headers["Impersonate-Extra-"+escapeKey(key)] = i.Extra[key]
	}
	return headers
}

// escapeKey percent-encodes the bytes that a header name cannot contain. The API server decodes them.
func escapeKey(key string) string {
	var escaped strings.Builder
	for _, b := range []byte(key) {
		letter := b >= 'a' && b <= 'z' || b >= '0' && b <= '9'
		if letter || strings.IndexByte("!#$&'*+-.^_`|~", b) >= 0 {
			escaped.WriteByte(b)
			continue
		}
		fmt.Fprintf(&escaped, "%%%02X", b)
	}
	return escaped.String()
}
