package request

import (
	"net/http"
	"strings"
)

// AuditIDHeader is Audit-ID in the canonical form of net/http.
const AuditIDHeader = "Audit-Id"

// SecurityHeaders are in every response. All responses share the slices; never change them.
var SecurityHeaders = http.Header{
	"Content-Security-Policy": {"default-src 'none'; frame-ancestors 'none'"},
	"X-Frame-Options":         {"DENY"},
	"X-Xss-Protection":        {"1; mode=block"},
	"X-Content-Type-Options":  {"nosniff"},
	"Referrer-Policy":         {"no-referrer"},
	"X-Dns-Prefetch-Control":  {"off"},
	"Cache-Control":           {"no-cache,no-store,max-age=0,must-revalidate"},
	"Pragma":                  {"no-cache"},
	"Expires":                 {"0"},
}

// CloseAfterwards closes the client's connection after the response. Responses to upgrade requests need it too: the
// client may already speak the other protocol, and its bytes must not be parsed as a request.
func CloseAfterwards(h http.Header) { h["Connection"] = []string{"close"} }

// IsIdentityHeader is true for the folded names of headers that identify the user.
func IsIdentityHeader(folded string) bool {
	return strings.HasPrefix(folded, "impersonate-") || strings.HasPrefix(folded, "x-remote-") || folded == "authorization"
}

// MayBeIdentityHeader is false for names for which IsIdentityHeader is false in any spelling. It is a fast check.
func MayBeIdentityHeader(name string) bool {
	return name != "" && (name[0]|0x20 == 'i' || name[0]|0x20 == 'x' || name[0]|0x20 == 'a')
}

// Fold normalizes a header name for comparisons.
func Fold(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// WantsUpgrade is true when the header requests or confirms a protocol upgrade.
func WantsUpgrade(h http.Header) bool {
	for _, line := range h.Values("Connection") {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}
