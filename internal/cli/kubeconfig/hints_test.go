package kubeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// TestFileHints checks the hint for each cause for which a kubeconfig is not changed.
func TestFileHints(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"damaged":        {kubeconfig.ErrDamaged, "fix the file first"},
		"something else": {kubeconfig.ErrNotKubeconfig, "pass kubeconfigs"},
		"missing":        {fs.ErrNotExist, "pass kubeconfigs"},
		"a pipe":         {fmt.Errorf("%w: %w", kubeconfig.ErrNotKubeconfig, atomicfile.ErrNotRegular), "use a regular file"},
		"another cause":  {errors.New("disk full"), ""},
	} {
		got := ui.HintOf(explainFile(fmt.Errorf("reading: %w", test.err)))
		if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
