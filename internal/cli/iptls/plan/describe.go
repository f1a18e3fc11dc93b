package plan

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// DescribeBundle says in one line what is in a CA bundle.
func DescribeBundle(data string) string {
	if data == "" {
		return ""
	}
	bundle, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	if err != nil {
		return "(not base64)"
	}
	return DescribePEM(bundle)
}

// DescribePEM says in one line which certificates are in a CA bundle.
func DescribePEM(bundle []byte) string {
	members, _ := certs.ParseBundle(bundle)
	if len(members) == 0 {
		return "(no certificate)"
	}
	const most = 3
	var parts []string
	for _, member := range members[:min(len(members), most)] {
		name := cmp.Or(member.Subject.CommonName, member.Subject.String(), strings.Join(member.DNSNames, ", "))
		parts = append(parts, fmt.Sprintf("%.60q (SHA-256 %s)", name, certs.Fingerprint(member.Raw)[:16]))
	}
	if more := len(members) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// DescribePEMOrNone is DescribePEM, and empty for an empty bundle.
func DescribePEMOrNone(bundle []byte) string {
	if len(bundle) == 0 {
		return ""
	}
	return DescribePEM(bundle)
}

// OrNone returns "(none)" for an empty text.
func OrNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}
