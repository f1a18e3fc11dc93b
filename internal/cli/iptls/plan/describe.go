package plan

import (
	"encoding/base64"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
)

// DescribeBundle describes a CA bundle in one line.
func DescribeBundle(data string) string {
	if data == "" {
		return ""
	}
	bundle, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	if err != nil {
		return "(not base64)"
	}
	return serving.Describe(bundle)
}

// OrNone returns "(none)" for an empty text.
func OrNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}
