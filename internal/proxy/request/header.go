package request

import (
	"net/http"
	"strings"
)

// AuditIDHeader is Audit-ID as net/http spells it.
const AuditIDHeader = "Audit-Id"

// SecurityHeaders are in every response. The slices are shared by all responses and never changed.
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

// CloseAfterwards closes the client's connection after the response. It is also used for requests to switch protocols:
// the client may already be speaking the other protocol, and what it sends must not be read as a request.
func CloseAfterwards(h http.Header) { h["Connection"] = []string{"close"} }

// IsIdentityHeader is true for the folded names of headers that say who the user is.
func IsIdentityHeader(folded string) bool {
	return strings.HasPrefix(folded, "impersonate-") || strings.HasPrefix(folded, "x-remote-") || folded == "authorization"
}

// MayBeIdentityHeader is false for names that cannot be those of IsIdentityHeader, however they are spelled.
func MayBeIdentityHeader(name string) bool {
	return name != "" && (name[0]|0x20 == 'i' || name[0]|0x20 == 'x' || name[0]|0x20 == 'a')
}

// Fold normalizes header names, for comparisons.
func Fold(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// WantsUpgrade is true when the header asks for, or says, that the protocol is switched.
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
