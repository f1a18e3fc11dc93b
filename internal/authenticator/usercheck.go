package authenticator

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
)

// maxUserSize limits the names of a user and its groups, and its extras, in bytes. They are part of a client
// certificate, for which TLS libraries have limits of about 100 kB, or of the headers of each request. It fits a
// thousand groups with names of 60 characters.
const maxUserSize = 80 << 10

// CheckUser returns an error when an authenticator must not assert this user: names that are reserved for Kubernetes,
// text that breaks headers or logs, or more data than fits. The error does not contain the offending value, because the
// log may have to redact names.
func CheckUser(claimed user.Info) error {
	if claimed.GetName() == "" {
		return errors.New("empty username is not allowed")
	}
	size := cost(claimed.GetName())
	if err := checkIdentifier("the username", claimed.GetName()); err != nil {
		return err
	}
	if err := errors.Join(checkText("the UID", claimed.GetUID()), checkTrimmed("the UID", claimed.GetUID())); err != nil {
		return err
	}
	for i, group := range claimed.GetGroups() {
		size += cost(group)
		if err := checkIdentifier(fmt.Sprintf("group number %d", i+1), group); err != nil {
			return err
		}
	}
	for key, values := range claimed.GetExtra() {
		if err := checkExtraKey(key); err != nil {
			return err
		}
		for _, value := range values {
			size += cost(key + value)
			what := fmt.Sprintf("a value of extra key %q", key)
			if err := errors.Join(checkText(what, value), checkTrimmed(what, value)); err != nil {
				return err
			}
		}
	}
	if size > maxUserSize {
		return fmt.Errorf("the username, %d groups and the extras need %d bytes; the limit is %d",
			len(claimed.GetGroups()), size, maxUserSize)
	}
	return nil
}

// cost is the size of a text in a certificate, with its overhead.
func cost(text string) int { return len(text) + 16 }

// checkIdentifier refuses names that are reserved for Kubernetes: system:masters would have all permissions.
func checkIdentifier(what, name string) error {
	if err := checkText(what, name); err != nil {
		return err
	}
	// Normalize white space, case and look-alike letters, so that a reserved name cannot be spelled in another way.
	plain := undress(name)
	if strings.HasPrefix(plain, "system:") {
		return fmt.Errorf(`%s begins with "system:", which is reserved for Kubernetes`, what)
	}
	if name == "" {
		return fmt.Errorf("%s is empty", what)
	}
	otherSpace := func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }
	if strings.ContainsFunc(name, otherSpace) { // it looks like another name
		return fmt.Errorf("%s contains a space other than U+0020", what)
	}
	return checkTrimmed(what, name)
}

// checkTrimmed refuses leading and trailing space, which headers drop.
func checkTrimmed(what, text string) error {
	if strings.TrimSpace(text) != text {
		return fmt.Errorf("%s begins or ends with a space", what)
	}
	return nil
}

// undress normalizes a name for comparisons: lower case, and look-alike letters of other scripts replaced by the
// letters of "system:".
func undress(name string) string {
	plain := strings.Map(func(r rune) rune {
		switch r {
		case 'ѕ', 'ꜱ', 'ſ', 'ś', 'ș':
			return 's'
		case 'у', 'ү', 'ʏ', 'γ', 'ý':
			return 'y'
		case 'т', 'ᴛ', 'τ':
			return 't'
		case 'е', 'ҽ', 'ᴇ', 'ε':
			return 'e'
		case 'м', 'ᴍ':
			return 'm'
		case '։', '׃', '∶', 'ː', '˸', '꞉':
			return ':'
		}
		return r
	}, strings.ToLower(norm.NFKC.String(name)))
	return strings.TrimLeftFunc(plain, unicode.IsSpace)
}

// checkText refuses text that could break a line of a header or a log, end a string early, or look like another text.
func checkText(what, text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("%s is not valid UTF-8", what)
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("%s contains a control character", what)
	}
	if strings.ContainsFunc(text, invisible) {
		return fmt.Errorf("%s contains an invisible character", what)
	}
	return nil
}

// invisible is true for characters that are not displayed and may change their neighbors, such as those that change the
// writing direction.
func invisible(r rune) bool {
	const blanks = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0" // letters that are not displayed
	return unicode.Is(unicode.Cf, r) || strings.ContainsRune(blanks, r) || unicode.Is(unicode.Variation_Selector, r)
}

// ReservedExtraSuffix is the suffix of the extra keys that only the impersonation proxy sets.
const ReservedExtraSuffix = ".impersonation-proxy.concierge.pinniped.dev"

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
	if strings.EqualFold(key, VouchedByKey) || strings.HasSuffix(strings.ToLower(key), ReservedExtraSuffix) {
		return fmt.Errorf("extra key %q is reserved for the agent", key)
	}
	domain, _, _ := strings.Cut(key, "/")
	for _, reserved := range []string{"k8s.io", "kubernetes.io"} {
		if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
			return fmt.Errorf("extra key %q is in the domain %s, which is reserved for Kubernetes", key, reserved)
		}
	}
	return nil
}
