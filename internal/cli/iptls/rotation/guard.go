package rotation

import (
	"fmt"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Guard refuses changes by other commands while a rotation is under way.
func Guard(command string, issuer *configv1alpha1.CredentialIssuer) error {
	r, err := Read(issuer)
	if err == nil && !r.Active() {
		return nil
	}
	const ways = `finish it ("pinniped ip-tls rotate --status" says where it is), take it back with "rotate ` +
		`--undo", or give it up with "rotate --forget"`
	if err == nil {
		err = fmt.Errorf("a rotation to %s is under way: \"ip-tls %s\" would spoil it", r.Destination(),
			strings.TrimSpace(command))
	}
	return ui.WithExitCode(ui.WithHint(err, "%s%s", plan.NothingChanged, ways), ui.ExitRefused)
}
