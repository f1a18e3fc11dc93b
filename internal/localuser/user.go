package localuser

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

const (
	passwordHashKey = "passwordHash"
	groupsKey       = "groups"

	// reserved is the prefix of groups that only Kubernetes itself assigns, such as system:masters.
	reserved = "system:"
)

// bcryptHash matches a bcrypt hash: version, cost, 22 characters of salt, 31 characters of hash.
var bcryptHash = regexp.MustCompile(`^\$2[abxy]?\$[0-9]{2}\$[./A-Za-z0-9]{53}$`)

// user is a user as defined by a Secret.
type user struct {
	name   string
	hash   []byte
	groups []string
	// groupsErr is why groups could not be read. A login with the right password then fails with it.
	groupsErr error
}

// parseUser reads a user from a Secret. It returns nil, nil for a Secret that does not define one, and an error, which
// never contains the password hash, for an invalid one.
func parseUser(secret *corev1.Secret) (*user, error) {
	hash := bytes.TrimSpace(secret.Data[passwordHashKey])
	if secret.Name == ServingSecretName || len(hash) == 0 {
		return nil, nil //nolint:nilnil // "no user" is not an error
	}
	if !bcryptHash.Match(hash) {
		return nil, fmt.Errorf("%s is not a bcrypt hash", passwordHashKey)
	}
	found := &user{name: secret.Name, hash: hash}
	found.groups, found.groupsErr = parseGroups(secret.Data[groupsKey])
	for _, group := range found.groups {
		if strings.HasPrefix(group, reserved) {
			return nil, fmt.Errorf("group %q: names that begin with %q are reserved for Kubernetes", group, reserved)
		}
		if strings.ContainsFunc(group, unicode.IsControl) {
			return nil, fmt.Errorf("group %q holds a control character", group)
		}
	}
	return found, nil
}

// parseGroups reads the first line of comma-separated group names. It trims spaces around names.
func parseGroups(list []byte) ([]string, error) {
	record, err := csv.NewReader(bytes.NewReader(list)).Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading the comma-separated list in %s: %w", groupsKey, err)
	}
	var groups []string
	for _, name := range record {
		if name = strings.TrimSpace(name); name != "" {
			groups = append(groups, name)
		}
	}
	return groups, nil
}
