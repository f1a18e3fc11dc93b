package rotate

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// Options is everything `pinniped ip-tls rotate` needs; a test fills it directly.
type Options struct {
	Session *session.Session
	Flags   change.Flags

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

	request plan.Request
	reports []report
}

const stepNext = "next"

// NewCommand returns `pinniped ip-tls rotate`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{Session: session.New(f)}
	cmd := &cobra.Command{
		Use:   "rotate --secret NEW",
		Short: "Change to a certificate of another CA while existing kubeconfigs keep working",
		Long: `Change to the certificate in another Secret, of another CA, without locking anybody out who gets a new
kubeconfig in time:

  1  advertise   old and new CA are advertised together; the old certificate stays in service
  2  wait        kubeconfigs are made anew, now with both CAs ("pinniped kubeconfig rotate")
  3  switch      the new certificate is put in front; kubeconfigs that trust the old CA alone stop working, as is meant
  4  drop        the old CA is advertised no more

Run the same command again to go on: it finds where it is in the annotation "` + plan.RotationAnnotation + `" of the CredentialIssuer,
which is written together with each change. So it may be interrupted at any moment, and run as often as you like. Each
run does all that is due. While it is not time for step 3 yet, it says what it waits for and ends with exit code 6.
What makes it time:

  --after 168h          so much time has passed since the last kubeconfig was handed out that would stop working: since
                        step 1, unless somebody has told clients something else meanwhile
  --kubeconfigs PATH    every kubeconfig for this endpoint in the files or directories trusts the new CA already
  --report FILE         "pinniped kubeconfig rotate -o json" reports that every kubeconfig for
                        this endpoint has the new CA
  --continue            you say so

Of the first three, all that are given must hold. The agent remembers what clients were told ("pinniped ip-tls clients"):
nothing is waited for when every kubeconfig that was handed out works with the new certificate.

Before anything is changed, the old certificate is checked with both CAs, and the new one with both and with its own.
Each step waits until the endpoint presents the right certificate, verified with what is advertised; a step that does
not get there in time is taken back, and can be tried again.

--status shows where it is. --undo goes back, step by step: before step 3 to the old CA; after step 3 first to the
old certificate with both CAs, then to the old CA. Kubeconfigs with the old CA, or with both, work then. After step 4
there is a way back as long as nobody was told the new CA alone who would be locked out by it; else rotate in the other
direction.

Somebody else's change of the tls block is noticed, and nothing is changed then: put the fields back, or give the
rotation up with --forget, which leaves the configuration as it is.

The agent's generated certificate can be the old one, and with --to-generated the new one; steps 3 and 4 are then one.

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage, 3 refused (by a check, or as somebody else has changed the
configuration), 4 not permitted by the cluster, 5 did not take effect in time, 6 not time for the next step yet: run
it again later, 124 timed out before anything was changed, 130 interrupted.`,
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
  pinniped ip-tls rotate --undo`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Changed = cmd.Flags().Changed
			return factory.Execute(cmd.Context(), o)
		},
	}
	o.addOwnFlags(cmd)
	o.Flags.AddFlags(cmd, f, o.Session)
	o.Session.CompleteSecrets(cmd, f)
	return cmd
}

func (o *Options) addOwnFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.Secret, "secret", "", "Secret with the new certificate: NAME in the agent's namespace, or "+
		"NAMESPACE/NAME (required to begin)")
	flags.StringVar(&o.CABundle, "ca-bundle", "", `CA bundle of the new certificate: a PEM file, or "-" for stdin `+
		`(default: ca.crt of the Secret)`)
	flags.BoolVar(&o.SystemRoots, "system-roots", false, "the new certificate is of a public CA: advertise no CA "+
		"bundle in the end")
	flags.BoolVar(&o.ToGenerated, "to-generated", false, "rotate to the certificate that the agent generates")
	session.AddAllowFlag(cmd, &o.Allow, "NameNotCovered")
	flags.DurationVar(&o.After, "after", 0,
		"go on to step 3 when nobody was handed a kubeconfig for so long that would stop working, for example 168h")
	flags.StringArrayVar(&o.Kubeconfigs, "kubeconfigs", nil,
		"go on to step 3 when the kubeconfigs in this file or directory trust the new CA (repeatable)")
	flags.StringArrayVar(&o.Reports, "report", nil, `go on to step 3 when this report of "pinniped kubeconfig `+
		`rotate -o json" says that all have the new CA (repeatable)`)
	flags.BoolVar(&o.Continue, "continue", false, "go on to step 3 now")
	flags.StringVar(&o.Step, "step", "", `do this step only: 1, 2 (only look whether it is time), 3, 4 or "next" `+
		`(default: all that are due)`)
	flags.BoolVar(&o.Status, "status", false, "show where the rotation is, and change nothing")
	flags.BoolVar(&o.Abort, "undo", false, "go back to the old certificate and its CA")
	flags.BoolVar(&o.Forget, "forget", false, "give the rotation up and leave the configuration as it is")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"step":  factory.CompleteValues("1", "2", "3", "4", stepNext),
		"after": cobra.NoFileCompletions,
	})
}

// Validate checks the flags before anything is read.
func (o *Options) Validate() error {
	if err := o.Flags.Validate(o.Session); err != nil {
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
	o.request.Allow, err = session.AllowedCodes(o.Allow)
	return err
}

// exclusive refuses flags that contradict each other.
func (o *Options) exclusive() error {
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
	modes := given(map[string]bool{"status": o.Status, "undo": o.Abort, "forget": o.Forget, "step": o.Step != ""})
	ends := given(map[string]bool{"secret": o.Secret != "", "to-generated": o.ToGenerated})
	bundles := given(map[string]bool{
		"ca-bundle": o.Changed("ca-bundle"), "system-roots": o.SystemRoots,
		"to-generated": o.ToGenerated,
	})
	for _, names := range [][]string{modes, ends, bundles} {
		if len(names) > 1 {
			return ui.Usage(fmt.Errorf("%s exclude each other", strings.Join(names, " and ")))
		}
	}
	return nil
}

// Complete reads the CA bundle and loads the kubeconfig.
func (o *Options) Complete() error {
	var err error
	if o.Changed("ca-bundle") {
		certificate := session.CertificateFlags{
			Secret: o.Secret, CABundle: o.CABundle, Allow: o.Allow,
			Changed: func(flag string) bool { return flag == "ca-bundle" },
		}
		if o.request, err = certificate.Request(o.Session.In); err != nil {
			return err
		}
	}
	o.request.Secret = o.Secret
	for _, path := range o.Kubeconfigs { // before anything is changed
		if _, err := os.Stat(path); err != nil {
			return ui.Usage(fmt.Errorf("reading --kubeconfigs: %w", err))
		}
	}
	if o.reports, err = o.readReports(); err != nil {
		return err
	}
	return o.Session.Open()
}
