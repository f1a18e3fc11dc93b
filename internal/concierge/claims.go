package concierge

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
)

// checkClaims returns an error when the identity that an authenticator vouched for may not be put into a client certificate.
// The error names what is wrong and where, but not the offending value: it is logged where names may have to be redacted.
func checkClaims(claimed user.Info) error {
	if claimed.GetName() == "" {
		return errors.New("empty username is not allowed")
	}
	// A certificate cannot say who it is by UID, and dropping the UID would make it speak for any user of that name.
	if claimed.GetUID() != "" {
		return errors.New("UIDs are not supported")
	}
	if err := checkIdentifier("the username", claimed.GetName()); err != nil {
		return err
	}
	for i, group := range claimed.GetGroups() {
		if err := checkIdentifier(fmt.Sprintf("group number %d", i+1), group); err != nil {
			return err
		}
	}
	for key, values := range claimed.GetExtra() {
		if err := checkExtraKey(key); err != nil {
			return err
		}
		for _, value := range values {
			if err := checkText("a value of extra key "+fmt.Sprintf("%q", key), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkIdentifier refuses names that only Kubernetes itself may give: system:masters would own the cluster.
func checkIdentifier(what, name string) error {
	if err := checkText(what, name); err != nil {
		return err
	}
	// White space and case are looked through, so that no later reader takes for reserved what was not seen to be so here.
	if strings.HasPrefix(strings.ToLower(strings.TrimSpace(name)), "system:") {
		return fmt.Errorf(`%s begins with "system:", which is reserved for Kubernetes`, what)
	}
	return nil
}

// checkText refuses what could break a line of a header or a log, or end a string early.
func checkText(what, text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("%s is not valid UTF-8", what)
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("%s contains a control character", what)
	}
	return nil
}

const credentialIDKey = "authentication.kubernetes.io/credential-id"

func checkExtraKey(key string) error {
	if key == credentialIDKey {
		return nil
	}
	if problems := validation.IsDomainPrefixedPath(field.NewPath("extra").Key(key), key); len(problems) > 0 {
		return fmt.Errorf("extra key: %w", problems.ToAggregate())
	}
	if strings.Contains(key, "=") {
		return fmt.Errorf("extra key %q contains an equals sign", key)
	}
	domain, _, _ := strings.Cut(key, "/")
	for _, reserved := range []string{"k8s.io", "kubernetes.io"} {
		if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
			return fmt.Errorf("extra key %q is in the domain %s, which is reserved for Kubernetes", key, reserved)
		}
	}
	return nil
}

// organizationalUnits is where a certificate carries the extras: "key=value", sorted, for tools that audit.
func organizationalUnits(extra map[string][]string) []string {
	var units []string
	for key, values := range extra {
		for _, value := range values {
			units = append(units, key+"="+value)
		}
	}
	slices.Sort(units)
	return units
}
