package certs

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxMessage = 600 // bytes of a message or hint
	maxName    = 120 // bytes of a name out of a certificate inside a message
)

// Fingerprint returns the SHA-256 of a DER certificate in lower-case hexadecimal, as `openssl x509 -fingerprint
// -sha256` shows it without its colons.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// clip shortens s to at most n bytes without cutting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	cut := n - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// quote shows text from outside: quoted, with control characters escaped, and bounded.
func quote(s string) string { return strconv.QuoteToGraphic(clip(s, maxName)) }

// subject shows a certificate's subject, or what stands for an empty one.
func subject(cert *x509.Certificate) string {
	if name := cert.Subject.String(); name != "" {
		return quote(name)
	}
	if len(cert.DNSNames) > 0 {
		return "no subject, DNS name " + quote(cert.DNSNames[0])
	}
	return "no subject"
}

func issuer(cert *x509.Certificate) string {
	if name := cert.Issuer.String(); name != "" {
		return quote(name)
	}
	return "(no issuer name)"
}

// shortPrint is enough of a fingerprint to tell certificates apart.
func shortPrint(cert *x509.Certificate) string { return Fingerprint(cert.Raw)[:16] }

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }

// span shows a duration in the unit a person would choose.
func span(d time.Duration) string {
	if d < 0 {
		d = -d
	}
	switch days := d.Hours() / 24; {
	case days >= 2:
		return fmt.Sprintf("%.0f days", days)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%.0f hours", d.Hours())
	case d >= 2*time.Minute:
		return fmt.Sprintf("%.0f minutes", d.Minutes())
	case d.Round(time.Second) == time.Second:
		return "1 second"
	default:
		return fmt.Sprintf("%.0f seconds", d.Seconds())
	}
}

// joined joins the items for a sentence and leaves out what would make it too long.
func joined(items []string) string {
	const most = 12
	if len(items) > most {
		return strings.Join(items[:most], ", ") + fmt.Sprintf(" and %d more", len(items)-most)
	}
	return strings.Join(items, ", ")
}
