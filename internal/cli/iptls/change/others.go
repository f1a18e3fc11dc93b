package change

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// underWay is for how long a change whose outcome is not known may still be waited for by the command that made it.
const underWay = 10 * time.Minute

// sayOverwritten tells of another user's change that may not have taken effect yet, and that this one replaces.
func (c *Change) sayOverwritten(ctx context.Context, p *Proposal) {
	history, err := plan.ReadHistory(p.Snapshot.Issuer)
	newest := history.Newest()
	if err != nil || newest == nil || newest.Outcome != result.ChangeUnknown {
		return
	}
	age := c.Session.Now().Sub(newest.At).Round(time.Second)
	if by := c.Session.User(ctx); age > underWay || newest.By == "" || newest.By == by {
		return
	}
	p.Overwrites = newest
	c.Session.Progress.Warn("%s changed this with \"ip-tls %s\" %s ago (%s), and may still wait for it to take "+
		"effect: that is overwritten", newest.By, newest.Command, age, newest.Left.Describe())
}

// overwrites refuses when somebody else has changed, since before was read, fields that this run changes as well.
func overwrites(before *Proposal, now *configv1alpha1.CredentialIssuer) error {
	var theirs []string
	for _, change := range plan.ChangesBetween(*before.Snapshot.Issuer.Spec.ImpersonationProxy,
		*now.Spec.ImpersonationProxy) {
		if slices.ContainsFunc(before.Plan.Changes, func(f plan.FieldChange) bool { return f.Field == change.Field }) {
			theirs = append(theirs, fmt.Sprintf("%s from %s to %s", change.Field, plan.OrNone(change.From),
				plan.OrNone(change.To)))
		}
	}
	if len(theirs) == 0 {
		return nil
	}
	who := "somebody else"
	if history, err := plan.ReadHistory(now); err == nil {
		newest := history.Newest()
		if newest != nil && newest.By != "" && newest.At.After(before.Snapshot.Now.Add(-underWay)) {
			who = fmt.Sprintf("%s, with \"ip-tls %s\",", newest.By, newest.Command)
		}
	}
	return ui.WithExitCode(ui.WithHint(
		fmt.Errorf("%s has changed CredentialIssuer %q meanwhile: %s", who, now.Name, strings.Join(theirs, ", ")),
		"%sthe same command again replaces that change, if it is meant", plan.NothingChanged), ui.ExitRefused)
}
