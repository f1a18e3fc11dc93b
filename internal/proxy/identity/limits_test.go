package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLimitsAreDocumented compares the table of limits in the reference with the code of this package.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "agent.md"))
	if err != nil {
		t.Fatal(err)
	}
	for what, limit := range map[string]string{
		"response to a TokenReview or SubjectAccessReview": fmt.Sprintf("%.0f s, then 503", ReviewTimeout.Seconds()),
		"responses of reviews kept": fmt.Sprintf("%d about permissions, %d about tokens; apart from them %d about "+
			"permissions of anonymous users, "+
			"and %d about tokens that are no good", maxDecisions, maxTokens, maxUnauthenticated, maxTokens),
	} {
		if row := "| " + what + " | " + limit + " |\n"; !strings.Contains(string(content), row) {
			t.Errorf("docs/reference/agent.md has no row %q", row)
		}
	}
}
