package plan

import (
	"errors"
	"fmt"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// errRefused means that a check has refused the certificate.
var errRefused = errors.New("the certificate is refused")

// Refusal returns an error if the report refuses the certificate, else nil. done is the prefix of the hint: what the
// command has changed.
func Refusal(report certs.Report, done string) error {
	errs := report.Errors()
	if len(errs) == 0 {
		return nil
	}
	first := errs[0]
	text := fmt.Errorf("%w: %s", errRefused, first)
	if more := len(errs) - 1; more > 0 {
		text = fmt.Errorf("%w (and %d more, see above)", text, more)
	}
	return ui.WithExitCode(ui.WithHint(text, "%s", refusalHint(first, done)), ui.ExitRefused)
}

// NothingChanged is the prefix of the hint of a command that has changed nothing.
const NothingChanged = "nothing was changed; "

func refusalHint(first certs.Finding, done string) string {
	hint := done
	if first.Hint != "" {
		hint += first.Hint + "; "
	}
	hint += fmt.Sprintf("run %q for more", "pinniped explain "+string(first.Code))
	if first.CanBeAllowed() {
		hint += fmt.Sprintf(", or pass --allow %s if you accept the consequence", first.Code)
	}
	return hint
}
