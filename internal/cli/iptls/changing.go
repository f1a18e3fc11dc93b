package iptls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Changing is what the commands have that change the CredentialIssuer.
type Changing struct {
	Connection

	DryRun     string
	Diff       bool
	Wait       bool
	NoRollback bool
}

const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

func (c *Changing) addFlags(cmd *cobra.Command, f *factory.Factory) {
	flags := cmd.Flags()
	flags.StringVar(&c.DryRun, "dry-run", dryRunNone, `change nothing: "client" only looks and checks, "server" also lets the API server validate`)
	flags.Lookup("dry-run").NoOptDefVal = dryRunClient
	flags.BoolVar(&c.Diff, "diff", false, "show the fields that change, before and after")
	flags.BoolVar(&c.Wait, "wait", true, "wait until the endpoint presents the certificate")
	flags.BoolVar(&c.NoRollback, "no-rollback", false, "leave the new configuration in place when it does not take effect in time")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"dry-run": factory.CompleteValues(dryRunNone, dryRunClient, dryRunServer),
	})
	c.Connection.addFlags(cmd, f, 2*time.Minute, "text", "json", "yaml")
}

func (c *Changing) validate() error {
	if err := c.Connection.validate("text", "json", "yaml"); err != nil {
		return err
	}
	return oneOf("dry-run", c.DryRun, dryRunNone, dryRunClient, dryRunServer)
}

// say prints what the checks have found.
func (c *Changing) say(st *state, p *plan) {
	if p.report.Leaf != nil {
		c.progress.Info("Certificate for %s, valid until %s, SHA-256 %s", orNone(strings.Join(slices.Concat(p.report.DNSNames, p.report.IPAddresses), ", ")),
			p.report.NotAfter.Format(time.RFC3339), p.report.SHA256)
	}
	for _, finding := range p.report.Findings {
		text := finding.String()
		if finding.Hint != "" {
			text += " (" + finding.Hint + ")"
		}
		switch {
		case finding.Refuses():
			c.progress.Fail("%s", text)
		case finding.Allowed:
			c.progress.Warn("allowed: %s", text)
		case finding.Severity == certs.SeverityWarning:
			c.progress.Warn("%s", text)
		default:
			c.progress.Info("%s", text)
		}
	}
	if p.report.OK() {
		if p.report.Leaf != nil {
			c.progress.Done("Checked the certificate")
		}
		for _, manager := range otherManagers(st.issuer, p.changes) {
			c.progress.Warn("%q manages fields that change, too: if it is a tool that applies manifests, change them there as well, or it will put them back", manager)
		}
	}
}

// errRefused marks a refusal by a check.
var errRefused = errors.New("the certificate is refused")

// refusal returns the error for a report that refuses. done says what the command has done then.
func refusal(report certs.Report, done string) error {
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

const nothingChanged = "nothing was changed; "

func refusalHint(first certs.Finding, done string) string {
	hint := first.Hint
	if hint != "" {
		hint += "; "
	}
	hint += done + fmt.Sprintf("run %q for more", "pinniped explain "+string(first.Code))
	if first.CanBeAllowed() {
		hint += fmt.Sprintf(", or give --allow %s if you accept the consequence", first.Code)
	}
	return hint
}

// change is what differs between the commands that change the CredentialIssuer.
type change interface {
	// command is its name, for records.
	command() string
	// look gathers, decides, and tells what was found. With a plan, an error refuses it.
	look(ctx context.Context, first bool) (*state, *plan, error)
	// apply does it, if nothing has changed since. It may return errLookAgain.
	apply(ctx context.Context, st *state, p *plan) (*configv1alpha1.CredentialIssuer, error)
}

// errLookAgain means that what was decided must be decided anew.
var errLookAgain = errors.New("look again")

// attempts bounds how often a CredentialIssuer that changes under our hands is looked at anew.
const attempts = 5

// run checks, applies, waits and prints.
func (c *Changing) run(ctx context.Context, req *request, what change) error {
	ctx, cancel := factory.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if err := c.locate(ctx, req); err != nil {
		return err
	}
	result, err := c.do(ctx, what)
	if result == nil {
		return err
	}
	return errors.Join(c.print(result), err)
}

// do is run without its frame. A result beside an error is worth printing.
func (c *Changing) do(ctx context.Context, what change) (*Result, error) {
	st, p, applied, err := c.applyChecked(ctx, what)
	if p == nil {
		return nil, err
	}
	result := newResult(what.command(), st, p, c.DryRun)
	if err != nil {
		result.Action = actionRefused
		return result, err
	}
	if c.DryRun == dryRunNone && c.Wait {
		if err := c.waitAndReport(ctx, st, p, applied, result); err != nil {
			if result.Action != actionNotConverged {
				return nil, err
			}
			return result, err
		}
	}
	return result, nil
}

// secretError is what went wrong in writing a Secret.
type secretError struct {
	name string
	error
}

func (e *secretError) Unwrap() error { return e.error }

// culprit names the object that could not be changed.
func culprit(err error, st *state) string {
	if of, ok := errors.AsType[*secretError](err); ok {
		return fmt.Sprintf("Secret %q", of.name)
	}
	return fmt.Sprintf("CredentialIssuer %q", st.issuer.Name)
}

// applyChecked gathers, decides and applies. When the CredentialIssuer has changed between reading and applying, it
// starts over, so that what is applied was checked against what is there. applied is nil when nothing had to change.
func (c *Changing) applyChecked(ctx context.Context, what change) (*state, *plan, *configv1alpha1.CredentialIssuer, error) {
	for attempt := 1; ; attempt++ {
		st, p, err := what.look(ctx, attempt == 1)
		if err != nil {
			return st, p, nil, err
		}
		if err := refusal(p.report, nothingChanged); err != nil {
			return st, p, nil, err
		}
		if len(p.changes) > 0 {
			if err := guardRotation(what.command(), st.issuer); err != nil {
				return st, p, nil, err
			}
			if err := c.remember(what.command(), st, p); err != nil {
				return nil, nil, nil, err
			}
		}
		if len(p.changes) == 0 && len(p.annotations) == 0 {
			c.progress.Done("CredentialIssuer %q is configured like this already", st.issuer.Name)
			return st, p, nil, nil
		}
		if c.DryRun == dryRunClient {
			return st, p, nil, nil
		}
		applied, err := what.apply(ctx, st, p)
		switch {
		case err == nil:
			if c.DryRun == dryRunNone && len(changesBetween(*st.issuer.Spec.ImpersonationProxy, p.wanted)) > 0 {
				c.progress.Done("Changed CredentialIssuer %q", st.issuer.Name)
			}
			return st, p, applied, nil
		case errors.Is(err, errLookAgain):
		case errors.Is(err, discovery.ErrConflict) && attempt < attempts:
			c.progress.Info("%s has changed meanwhile: looking again", culprit(err, st))
		default:
			return nil, nil, nil, withCodes(fmt.Errorf("changing %s: %w", culprit(err, st), err))
		}
	}
}

// remember makes the plan write down what it takes the place of, for "ip-tls undo".
func (c *Changing) remember(command string, st *state, p *plan) error {
	record := newUndoRecord(command, c.Now(), st.issuer, p.wanted)
	if slices.ContainsFunc(p.changes, func(c Change) bool { return c.ofSecret() && c.From != "" }) {
		record.SecretReplaced = p.req.secret
		if c.DryRun == dryRunNone {
			c.progress.Warn("what is in Secret %q now is replaced, and not kept: \"pinniped ip-tls undo\" will not bring it back", p.req.secret)
		}
	}
	text, fits, err := encodeRecord(record)
	if err != nil {
		return err
	}
	if p.annotations == nil {
		p.annotations = map[string]any{}
	}
	p.annotations[undoAnnotation] = text
	if !fits {
		c.progress.Warn("the configuration is too large to be kept for \"pinniped ip-tls undo\": save it yourself")
		p.annotations[undoAnnotation] = nil
	}
	return nil
}

// merge makes the API server store the plan by a merge patch, whoever owns the fields until then.
func (c *Changing) merge(ctx context.Context, st *state, p *plan) (*configv1alpha1.CredentialIssuer, error) {
	patch, err := mergePatch(st.issuer, targetOf(&p.wanted), p.annotations)
	if err != nil {
		return nil, err
	}
	return c.cluster.MergeCredentialIssuer(ctx, st.issuer.Name, patch,
		discovery.ApplyOptions{FieldManager: fieldManager, DryRun: c.DryRun == dryRunServer})
}
