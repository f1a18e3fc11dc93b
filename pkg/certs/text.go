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
	maxName    = 120 // bytes of a name from a certificate in a message
)

// Fingerprint returns the SHA-256 of a DER certificate in lower-case hexadecimal, like `openssl x509 -fingerprint
// -sha256` without colons.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// clip truncates s to at most n bytes, between characters.
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

// quote quotes and truncates untrusted text, with control characters escaped.
func quote(s string) string { return strconv.QuoteToGraphic(clip(s, maxName)) }

// quotedAll quotes each text.
func quotedAll(texts []string) []string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = quote(text)
	}
	return quoted
}

// texts returns the text of each item.
func texts[T fmt.Stringer](items []T) []string {
	all := make([]string, len(items))
	for i, item := range items {
		all[i] = item.String()
	}
	return all
}

// subject formats a certificate's subject, or its first DNS name if that is empty.
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
	return "a CA without a name"
}

// shortPrint returns a prefix of the fingerprint that identifies a certificate to people.
func shortPrint(cert *x509.Certificate) string { return Fingerprint(cert.Raw)[:16] }

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }

// span formats the time between a and b in a suitable unit. It calculates in seconds, because a time.Duration is
// limited to 292 years.
func span(a, b time.Time) string {
	seconds := b.Unix() - a.Unix()
	if seconds < 0 {
		seconds = -seconds
	}
	const minute, hour, day, year = 60, 60 * 60, 24 * 60 * 60, 365 * 24 * 60 * 60
	rounded := func(unit int64) int64 { return (seconds + unit/2) / unit }
	switch {
	case seconds >= 20*year:
		return fmt.Sprintf("%d years", rounded(year))
	case seconds >= 2*day:
		return fmt.Sprintf("%d days", rounded(day))
	case seconds >= 2*hour:
		return fmt.Sprintf("%d hours", rounded(hour))
	case seconds >= 2*minute:
		return fmt.Sprintf("%d minutes", rounded(minute))
	case seconds == 1:
		return "1 second"
	default:
		return fmt.Sprintf("%d seconds", seconds)
	}
}

// lastInstant returns the last time that RFC 3339 and JSON can represent. In a certificate it means "no expiration"
// (RFC 5280, section 4.1.2.5).
func lastInstant() time.Time { return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }

// writable returns t in UTC, limited to the years of JSON: dates with an offset may exceed them by some hours.
func writable(t time.Time) time.Time {
	t = t.UTC()
	switch {
	case t.After(lastInstant()):
		return lastInstant()
	case t.Year() < 0:
		return time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	default:
		return t
	}
}

// joined joins the items for a sentence, and omits those that make it too long.
func joined(items []string) string {
	const most = 12
	if len(items) > most {
		return strings.Join(items[:most], ", ") + fmt.Sprintf(" and %d more", len(items)-most)
	}
	return strings.Join(items, ", ")
}
