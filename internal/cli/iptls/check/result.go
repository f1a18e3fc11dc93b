package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Result is what `ip-tls check` prints with `-o json` and `-o yaml`. Scripts rely on its fields.
type Result struct {
	// Source is "cluster", "files" or "endpoint".
	Source           string `json:"source"`
	CredentialIssuer string `json:"credentialIssuer,omitempty"`
	// At is the time for which the certificates were checked.
	At time.Time `json:"at"`
	// OK is true when no finding refuses a certificate.
	OK bool `json:"ok"`
	// CABundle describes what clients verify with; empty when they use their system roots.
	CABundle string    `json:"caBundle"`
	Subjects []Subject `json:"certificates"`
	// NotChecked names what could not be checked, each with the reason.
	NotChecked []string `json:"notChecked,omitempty"`
	// Error says why nothing could be checked at all.
	Error *Failure `json:"error,omitempty"`
}

// Failure is what went wrong before there was a result.
type Failure struct {
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
	ExitCode int    `json:"exitCode"`
}

// Subject is one certificate that was checked.
type Subject struct {
	// Name says where it is: a Secret, a file, or the addresses that present it.
	Name        string       `json:"name"`
	Certificate certs.Report `json:"certificate"`
	// Timeline is what will go wrong if nothing is renewed, with --timeline.
	Timeline []certs.Event `json:"timeline,omitempty"`
	// BreaksAt is the first instant at which something is broken, with --timeline; At itself when something is already.
	BreaksAt *time.Time `json:"breaksAt,omitempty"`
}

// conclude fills in what follows from the rest.
func (r *Result) conclude(timeline bool) {
	r.OK = true
	for i := range r.Subjects {
		s := &r.Subjects[i]
		if s.Certificate.Findings == nil {
			s.Certificate.Findings = []certs.Finding{}
		}
		r.OK = r.OK && s.Certificate.OK()
		if !timeline {
			continue
		}
		for _, f := range s.Certificate.Findings {
			if f.Refuses() && f.Code != certs.ExpiresSoon {
				s.BreaksAt = &r.At
			}
		}
		if first := slices.IndexFunc(s.Timeline, func(e certs.Event) bool { return e.Breaks }); s.BreaksAt == nil &&
			first >= 0 {
			s.BreaksAt = &s.Timeline[first].At
		}
	}
}

func (r *Result) findings() []certs.Finding {
	var all []certs.Finding
	for _, s := range r.Subjects {
		all = append(all, s.Certificate.Findings...)
	}
	return all
}

// reported prints err as a Result when the output format is one for programs and nothing was printed yet. It returns
// err.
func (o *Options) reported(err error) error {
	if err == nil || o.printed || !slices.Contains([]string{"json", "yaml", "junit"}, o.Session.Output) {
		return err
	}
	failed := &Result{
		At: o.now().UTC(), Subjects: []Subject{},
		Error: &Failure{Message: strings.TrimSpace(err.Error()), Hint: ui.HintOf(err), ExitCode: ui.ExitCodeOf(err)},
	}
	if printing := o.print(failed); printing != nil {
		return errors.Join(err, printing)
	}
	return err
}

// askedFormat finds --output in a command line that cannot be parsed as a whole.
func askedFormat(args []string) string {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	format := flags.StringP("output", "o", "text", "")
	_ = flags.Parse(args) // what else is wrong is told by the command itself
	return *format
}

func (o *Options) print(result *Result) error {
	return o.Session.Write(result, func() ([]byte, error) {
		if o.Session.Output == "junit" {
			return junit(result)
		}
		return o.text(result), nil
	})
}

func (o *Options) text(result *Result) []byte {
	var out strings.Builder
	bundle := result.CABundle
	if bundle == "" {
		bundle = "none: clients use their system roots"
	}
	for i, s := range result.Subjects {
		if i > 0 {
			out.WriteString("\n")
		}
		o.writeSubject(&out, s, bundle, result.At)
	}
	for i, what := range result.NotChecked {
		if i == 0 {
			out.WriteString("\nnot checked:\n")
		}
		fmt.Fprintf(&out, "  %s\n", what)
	}
	return []byte(out.String())
}

func (o *Options) writeSubject(out *strings.Builder, s Subject, bundle string, at time.Time) {
	verdict := o.Style.Good("good")
	if errs, warnings := len(s.Certificate.Errors()), len(s.Certificate.Warnings()); errs > 0 {
		verdict = o.Style.Bad("refused")
	} else if warnings > 0 {
		verdict = o.Style.Caution("good, with warnings")
	}
	fmt.Fprintf(out, "%s: %s", o.Style.Bold(s.Name), verdict)
	if !o.at.IsZero() {
		fmt.Fprintf(out, " at %s", at.Format(time.RFC3339))
	}
	out.WriteString("\n")
	if leaf := s.Certificate; leaf.Leaf != nil {
		fmt.Fprintf(out, "  names:      %s\n",
			plan.OrNone(strings.Join(slices.Concat(leaf.DNSNames, leaf.IPAddresses), ", ")))
		fmt.Fprintf(out, "  valid:      from %s until %s\n", leaf.NotBefore.Format(time.RFC3339),
			leaf.NotAfter.Format(time.RFC3339))
		fmt.Fprintf(out, "  SHA-256:    %s\n", leaf.SHA256)
		fmt.Fprintf(out, "  CA bundle:  %s\n", bundle)
	}
	for _, f := range s.Certificate.Findings {
		fmt.Fprintf(out, "  %s %s\n", o.mark(f), f)
		if f.Hint != "" {
			fmt.Fprintf(out, "      %s\n", o.Style.Faint(f.Hint))
		}
	}
	if !o.Timeline {
		return
	}
	switch {
	case s.BreaksAt == nil:
		out.WriteString("  breaks:     nothing is known to\n")
	case s.BreaksAt.Equal(at):
		fmt.Fprintf(out, "  breaks:     %s\n", o.Style.Bad("it is broken already"))
	default:
		fmt.Fprintf(out, "  breaks:     first at %s\n", s.BreaksAt.Format(time.RFC3339))
	}
	for _, event := range s.Timeline {
		for _, f := range event.Findings {
			fmt.Fprintf(out, "  %s  %s %s\n", event.At.Format(time.RFC3339), o.mark(f), f)
		}
	}
}

// mark returns the character that shows the severity of a finding.
func (o *Options) mark(f certs.Finding) string {
	switch {
	case f.Refuses():
		return o.Style.Bad("✗")
	case f.Severity == certs.SeverityInfo:
		return "•"
	default:
		return o.Style.Caution("!")
	}
}
