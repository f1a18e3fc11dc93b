package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestLimitsAreDocumented compares the table of limits in the reference with the code of this package.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	content := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "agent.md")))(t)
	for what, limit := range map[string]string{
		"TokenReview or SubjectAccessReview": fmt.Sprintf("%.0f s, then 503", ReviewTimeout.Seconds()),
		"cached reviews": fmt.Sprintf("%d for access, %d for tokens; separately, %d for anonymous access "+
			"and %d for invalid tokens", maxDecisions, maxTokens, maxUnauthenticated, maxTokens),
	} {
		if row := "| " + what + " | " + limit + " |\n"; !strings.Contains(string(content), row) {
			t.Errorf("docs/reference/agent.md has no row %q", row)
		}
	}
}
