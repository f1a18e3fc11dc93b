package localuser

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync/atomic"
	"unicode"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
)

const (
	passwordHashKey = "passwordHash"
	groupsKey       = "groups"

	// reserved begins the names that only Kubernetes itself gives: system:masters before all.
	reserved = "system:"
)

// bcryptHash is what bcrypt writes: version, cost, 22 characters of salt, 31 characters of hash.
var bcryptHash = regexp.MustCompile(`^\$2[abxy]?\$[0-9]{2}\$[./A-Za-z0-9]{53}$`)

// user is what one Secret says about a user.
type user struct {
	name   string
	hash   []byte
	cost   int
	groups []string
	// groupsErr tells why groups could not be read. The user's right password is then answered with an error.
	groupsErr error
	// matched is the password that was compared last and is right, nil when that is long ago. It is all that changes.
	matched atomic.Pointer[matched]
}

// parseUser reads a user from a Secret. It returns nil, nil for a Secret that does not define one, and an error,
// which never holds the password hash, for one that does and must not count.
func parseUser(secret *corev1.Secret) (*user, error) {
	hash := bytes.TrimSpace(secret.Data[passwordHashKey])
	if secret.Name == ServingSecretName || len(hash) == 0 {
		return nil, nil //nolint:nilnil // "no user" is not an error
	}
	if strings.HasPrefix(secret.Name, reserved) {
		return nil, fmt.Errorf("names that begin with %q belong to Kubernetes", reserved)
	}
	cost, err := bcrypt.Cost(hash)
	if err != nil || !bcryptHash.Match(hash) {
		return nil, fmt.Errorf("%s is not a bcrypt hash", passwordHashKey)
	}
	found := &user{name: secret.Name, hash: hash, cost: cost}
	if found.groups, found.groupsErr = parseGroups(secret.Data[groupsKey]); found.groupsErr != nil {
		return found, nil
	}
	for _, group := range found.groups {
		if err := checkGroup(group); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// parseGroups reads the first line of comma-separated group names. Blanks around a name are not part of it.
func parseGroups(list []byte) ([]string, error) {
	record, err := csv.NewReader(bytes.NewReader(list)).Read()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
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

func checkGroup(group string) error {
	if strings.HasPrefix(group, reserved) {
		return fmt.Errorf("group %q: names that begin with %q belong to Kubernetes", group, reserved)
	}
	if strings.ContainsFunc(group, unicode.IsControl) {
		return fmt.Errorf("group %q holds a control character", group)
	}
	return nil
}
