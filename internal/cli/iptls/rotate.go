package iptls

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// RotateOptions is everything `pinniped ip-tls rotate` needs; a test fills it directly.
type RotateOptions struct {
	Changing

	Secret      string
	CABundle    string // a path, or "-" for stdin
	SystemRoots bool
	ToGenerated bool
	Allow       []string

	After       time.Duration
	Kubeconfigs []string
	Reports     []string
	Continue    bool
	Step        string

	Status bool
	Abort  bool
	Forget bool

	// Changed says whether a flag was given on the command line.
	Changed func(flag string) bool

	request request
	reports []report
}

const stepNext = "next"

func newRotateCommand(f *factory.Factory) *cobra.Command {
	o := &RotateOptions{Changing: Changing{Connection: connection(f)}}
	cmd := &cobra.Command{
		Use:   "rotate --secret NEW",
		Short: "Change to a certificate of another CA without locking anybody out",
		Long: `Change to the certificate in another Secret, of another CA, without locking anybody out who gets a new kubeconfig in time:

  1  advertise   old and new CA are advertised together; the old certificate stays in service
  2  wait        kubeconfigs are made anew, now with both CAs ("pinniped kubeconfig rotate")
  3  switch      the new certificate is put in front; kubeconfigs that trust the old CA alone stop working, as is meant
  4  drop        the old CA is advertised no more

Run the same command again to go on: it finds where it is in the annotation "` + rotationAnnotation + `" of the CredentialIssuer,
which is written together with each change. So it may be interrupted at any moment, and run as often as you like. Each run does all
that is due. While it is not time for step 3 yet, it says what it waits for and ends with exit code 6. What makes it time:

  --after 168h          so much time has passed since step 1
  --kubeconfigs PATH    every kubeconfig for this endpoint in the files or directories trusts the new CA already
  --report FILE         "pinniped kubeconfig rotate -o json" reports that every kubeconfig for this endpoint has the new CA
  --continue            you say so

Of the first three, all that are given must hold. Nothing is waited for when the kubeconfigs handed out so far verify the new certificate.

Before anything is changed, the old certificate is checked with both CAs, and the new one with both and with its own. Each
step waits until the endpoint presents the right certificate, verified with what is advertised; a step that does not get there in
time is taken back, and can be tried again.

--status shows where it is. --abort goes back, step by step: before step 3 to the old CA; after step 3 first to the old certificate
with both CAs, then to the old CA. Kubeconfigs with the old CA, or with both, work then. After step 4 there may be kubeconfigs with
the new CA alone, so there is no way back but a rotation in the other direction.

Somebody else's change of the tls block is noticed, and nothing is changed then: put the fields back, or give the rotation up with
--forget, which leaves the configuration as it is.

The agent's generated certificate can be the old one, and with --to-generated the new one; steps 3 and 4 are then one.

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage, 3 refused (by a check, or as somebody else has changed the configuration),
4 not permitted by the cluster, 5 did not take effect in time, 6 not time for the next step yet: run it again later, 124 timed out
before anything was changed, 130 interrupted.`,
		Example: `  # Step 1, and then steps 3 and 4 in the first run that is a week later; for a nightly job
  pinniped ip-tls rotate --secret proxy-tls-2027 --ca-bundle ca-2027.pem --after 168h

  # Where is it?
  pinniped ip-tls rotate --status

  # Go on as soon as all kubeconfigs of the fleet have the new CA
  pinniped ip-tls rotate --secret proxy-tls-2027 --kubeconfigs /srv/kubeconfigs

  # The same, where the kubeconfigs are rotated on another machine
  pinniped kubeconfig rotate /srv/kubeconfigs -o json > report.json
  pinniped ip-tls rotate --secret proxy-tls-2027 --report report.json

  # By hand, step by step
  pinniped ip-tls rotate --secret proxy-tls-2027 --step 1
  pinniped ip-tls rotate --secret proxy-tls-2027 --step 3 --continue
  pinniped ip-tls rotate --secret proxy-tls-2027 --step 4

  # Back, at any time before step 4
  pinniped ip-tls rotate --abort`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Changed = cmd.Flags().Changed
			return execute(cmd.Context(), o)
		},
	}
	o.addOwnFlags(cmd)
	o.addFlags(cmd, f)
	completeSecrets(cmd, f, &o.Connection)
	return cmd
}

func (o *RotateOptions) addOwnFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.Secret, "secret", "", "Secret with the new certificate: NAME in the agent's namespace, or NAMESPACE/NAME (required to begin)")
	flags.StringVar(&o.CABundle, "ca-bundle", "", `CA bundle of the new certificate: a PEM file, or "-" for stdin (default: ca.crt of the Secret)`)
	flags.BoolVar(&o.SystemRoots, "system-roots", false, "the new certificate is of a public CA: advertise no CA bundle in the end")
	flags.BoolVar(&o.ToGenerated, "to-generated", false, "rotate to the certificate that the agent generates")
	flags.StringArrayVar(&o.Allow, "allow", nil, "let through what the check with this code refuses (repeatable), for example NameNotCovered")
	flags.DurationVar(&o.After, "after", 0, "go on to step 3 when so much time has passed since step 1, for example 168h")
	flags.StringArrayVar(&o.Kubeconfigs, "kubeconfigs", nil, "go on to step 3 when the kubeconfigs in this file or directory trust the new CA (repeatable)")
	flags.StringArrayVar(&o.Reports, "report", nil, `go on to step 3 when this report of "pinniped kubeconfig rotate -o json" says that all have the new CA (repeatable)`)
	flags.BoolVar(&o.Continue, "continue", false, "go on to step 3 now")
	flags.StringVar(&o.Step, "step", "", `do this step only: 1, 2 (only look whether it is time), 3, 4 or "next" (default: all that are due)`)
	flags.BoolVar(&o.Status, "status", false, "show where the rotation is, and change nothing")
	flags.BoolVar(&o.Abort, "abort", false, "go back to the old certificate and its CA")
	flags.BoolVar(&o.Forget, "forget", false, "give the rotation up and leave the configuration as it is")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"allow": factory.CompleteValues(allowable()...), "step": factory.CompleteValues("1", "2", "3", "4", stepNext),
		"after": cobra.NoFileCompletions,
	})
}

// Validate checks the flags before anything is read.
func (o *RotateOptions) Validate() error {
	if err := o.validate(); err != nil {
		return err
	}
	if o.Step != "" && !slices.Contains([]string{"1", "2", "3", "4", stepNext}, o.Step) {
		return factory.OneOf("step", o.Step, "1", "2", "3", "4", stepNext)
	}
	if o.After < 0 {
		return ui.Usage(fmt.Errorf("invalid value %q for --after: it is negative", o.After))
	}
	if err := o.exclusive(); err != nil {
		return err
	}
	var err error
	o.request.allow, err = allowedCodes(o.Allow)
	return err
}

// exclusive refuses flags that contradict each other.
func (o *RotateOptions) exclusive() error {
	given := func(set map[string]bool) []string {
		var names []string
		for name, yes := range set {
			if yes {
				names = append(names, "--"+name)
			}
		}
		slices.Sort(names)
		return names
	}
	modes := given(map[string]bool{"status": o.Status, "abort": o.Abort, "forget": o.Forget, "step": o.Step != ""})
	ends := given(map[string]bool{"secret": o.Secret != "", "to-generated": o.ToGenerated})
	bundles := given(map[string]bool{"ca-bundle": o.Changed("ca-bundle"), "system-roots": o.SystemRoots, "to-generated": o.ToGenerated})
	for _, names := range [][]string{modes, ends, bundles} {
		if len(names) > 1 {
			return ui.Usage(fmt.Errorf("%s exclude each other", strings.Join(names, " and ")))
		}
	}
	return nil
}

// Complete reads the CA bundle and loads the kubeconfig.
func (o *RotateOptions) Complete() error {
	var err error
	if o.Changed("ca-bundle") {
		candidate := Candidate{Secret: o.Secret, CABundle: o.CABundle, Allow: o.Allow, Changed: func(flag string) bool { return flag == "ca-bundle" }}
		if o.request, err = candidate.asRequest(o.In); err != nil {
			return err
		}
	}
	o.request.secret = o.Secret
	for _, path := range o.Kubeconfigs { // before anything is changed
		if _, err := os.Stat(path); err != nil {
			return ui.Usage(fmt.Errorf("reading --kubeconfigs: %w", err))
		}
	}
	if o.reports, err = o.readReports(); err != nil {
		return err
	}
	return o.open()
}

// Run does what is due, or shows it.
func (o *RotateOptions) Run(ctx context.Context) error {
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if err := o.locate(ctx, &o.request); err != nil {
		return err
	}
	result := &RotateResult{}
	if o.DryRun != dryRunNone {
		result.DryRun = o.DryRun
	}
	err := o.rotate(ctx, result)
	if result.Action == "" && ui.ExitCodeOf(err) == ui.ExitRefused {
		result.Action = actionRefused
	}
	if result.Action == "" {
		return err
	}
	return errors.Join(o.printRotation(result), err)
}

func (o *RotateOptions) rotate(ctx context.Context, result *RotateResult) error {
	issuer, err := readIssuer(ctx, o.cluster, o.CredentialIssuer)
	if err != nil {
		return err
	}
	o.CredentialIssuer, result.CredentialIssuer = issuer.Name, issuer.Name
	if o.Forget {
		return o.forget(ctx, issuer, result)
	}
	r, err := readRotation(issuer)
	if err != nil {
		return ui.WithHint(err, "it was written by another version of pinniped, or changed by hand; --forget gives the rotation up and leaves the configuration as it is")
	}
	result.show(r)
	switch {
	case o.Status:
		return o.showStatus(ctx, issuer, r, result)
	case o.Abort:
		return o.abort(ctx, issuer, r, result)
	default:
		return o.forward(ctx, issuer, r, result)
	}
}

// showStatus fills in the result of --status.
func (o *RotateOptions) showStatus(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation, result *RotateResult) error {
	result.Action = actionStatus
	if r == nil {
		return nil
	}
	if r.active() {
		if fields := r.edited(issuer.Spec.ImpersonationProxy); len(fields) > 0 {
			result.Edited = fields
			o.progress.Warn("somebody else has changed %s since", strings.Join(fields, ", "))
		}
		if r.Phase == phaseAdvertised && !r.Aborting {
			_, err := o.gate(ctx, issuer, r, result)
			return err
		}
	}
	return nil
}

// forward does the steps that are due.
func (o *RotateOptions) forward(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation, result *RotateResult) error {
	r, begun, err := o.begin(ctx, issuer, r)
	if err != nil {
		return err
	}
	if !begun {
		if err := o.sameRotation(r, issuer); err != nil {
			return err
		}
	}
	result.show(r)
	if done, err := o.chosen(r, result); done || err != nil {
		return err
	}
	confirmed := !r.active()
	for r.next() != 0 {
		step := r.next()
		if !confirmed {
			if err := o.confirm(ctx, r); err != nil {
				result.fail(err, nil)
				return err
			}
		}
		if step == stepSwitch {
			if ready, err := o.isTime(ctx, r, result); !ready || err != nil {
				return err
			}
		}
		next, one, err := o.step(ctx, r, step)
		if one != nil {
			result.Changes = append(result.Changes, one)
		}
		if err != nil {
			result.fail(err, one)
			return err
		}
		result.did(next, o.DryRun)
		if o.DryRun != dryRunNone {
			return nil
		}
		r, confirmed = next, o.Wait
		if o.Step != "" {
			return nil
		}
	}
	if result.Action == "" {
		result.Action = actionUnchanged
		o.progress.Done("The rotation to %s is done already", r.destination())
	}
	return nil
}

// isTime ends the command where it is not time for step 3 yet, or where that was the question.
func (o *RotateOptions) isTime(ctx context.Context, r *rotation, result *RotateResult) (bool, error) {
	issuer, err := readIssuer(ctx, o.cluster, o.CredentialIssuer)
	if err != nil {
		return false, err
	}
	ready, err := o.gate(ctx, issuer, r, result)
	if err != nil {
		return false, err
	}
	if !ready {
		result.Action = actionWaiting
		return false, ui.WithExitCode(ui.WithHint(fmt.Errorf("it is not time for step 3 yet: waiting for %s", strings.Join(result.WaitsFor, "; and for ")),
			"run the same command again later; make kubeconfigs anew with \"pinniped kubeconfig rotate\" or \"pinniped get kubeconfig\"; --continue goes on at once"), ui.ExitNotDue)
	}
	if o.Step == strconv.Itoa(stepWait) {
		result.Action = actionUnchanged
		o.progress.Done("It is time for step 3")
		return false, nil
	}
	return true, nil
}

// chosen compares --step with where the rotation is. It is done when the step is.
func (o *RotateOptions) chosen(r *rotation, result *RotateResult) (done bool, err error) {
	if o.Step == "" || o.Step == stepNext {
		return false, nil
	}
	number, err := strconv.Atoi(o.Step)
	if err != nil {
		return false, fmt.Errorf("reading --step: %w", err)
	}
	next := r.next()
	if number == stepWait && next == stepSwitch || number == next {
		return false, nil
	}
	if next == 0 || number < next {
		result.Action = actionUnchanged
		o.progress.Done("Step %d is done already", number)
		return true, nil
	}
	return false, ui.WithExitCode(ui.WithHint(fmt.Errorf("step %d comes after step %d, which is not done", number, next),
		"%sleave out --step to do all that is due", nothingChanged), ui.ExitRefused)
}

// sameRotation refuses to go on with a rotation that is another one, is on its way back, or was interfered with.
func (o *RotateOptions) sameRotation(r *rotation, issuer *configv1alpha1.CredentialIssuer) error {
	refused := func(hint, format string, args ...any) error {
		return ui.WithExitCode(ui.WithHint(fmt.Errorf(format, args...), "%s%s", nothingChanged, hint), ui.ExitRefused)
	}
	const ways = `see "pinniped ip-tls rotate --status"; finish it, or take it back with --abort`
	if r.active() {
		other := o.ToGenerated && r.To != nil || o.Secret != "" && (r.To == nil || r.To.SecretName != o.request.secret)
		if other {
			return refused(ways, "another rotation is under way, to %s", r.destination())
		}
		if o.request.bundleGiven && !certs.SameBundle(o.request.bundle, []byte(r.NewCA)) {
			return refused(ways, "the rotation to %s was begun with another --ca-bundle: %s", r.destination(), describePEM([]byte(r.NewCA)))
		}
		if r.Aborting {
			return refused("go on with --abort", "the rotation to %s is being aborted", r.destination())
		}
	}
	return o.untouched(r, issuer)
}

// untouched refuses when the configuration is not as the rotation has left it.
func (o *RotateOptions) untouched(r *rotation, issuer *configv1alpha1.CredentialIssuer) error {
	fields := r.edited(issuer.Spec.ImpersonationProxy)
	if !r.active() || len(fields) == 0 {
		return nil
	}
	what := strings.Join(fields, ", ")
	if managers := managersOf(issuer, fields); len(managers) > 0 {
		what += fmt.Sprintf(" (managed by %s)", strings.Join(managers, ", "))
	}
	secret := "no tls block"
	if block := r.block(r.Phase); block != nil {
		secret = fmt.Sprintf("Secret %q and the CA bundle %s", block.SecretName, describeBundle(block.CertificateAuthorityData))
	}
	return ui.WithExitCode(ui.WithHint(
		fmt.Errorf("somebody else has changed CredentialIssuer %q during the rotation: %s; step %d has left %s", issuer.Name, what, r.lastStep(), secret),
		`%sput these fields back ("kubectl edit"), or give the rotation up with --forget, which leaves the configuration as it is`, nothingChanged), ui.ExitRefused)
}

func (r *rotation) lastStep() int {
	switch r.Phase {
	case phaseSwitched:
		return stepSwitch
	case phaseDone:
		return stepDrop
	case phaseNone, phaseAdvertised, phaseAborted:
	}
	return stepAdvertise
}

// destination names what is rotated to.
func (r *rotation) destination() string {
	if r.To == nil {
		return "the agent's generated certificate"
	}
	return fmt.Sprintf("Secret %q", r.To.SecretName)
}
