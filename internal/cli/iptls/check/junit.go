package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui/junit"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// command is the name of the report, and of the suite about the command itself.
const command = "pinniped ip-tls check"

// junit returns a report that has the same cases in every run with the same flags, whatever is found: one that says
// whether the checks could be made at all; for each file, the endpoint, or the cluster a suite with a case for each code
// of the catalogue; and with --timeline another such suite of what will go wrong, which fails nothing today.
func (o *Options) junit(checked *result.Check) ([]byte, error) {
	at := junit.Timestamp(checked.At)
	made := junit.Case{Name: "the checks can be made"}
	if checked.Error != nil {
		made.Error = &junit.Message{
			Type:    fmt.Sprintf("exit code %d", checked.Error.ExitCode),
			Message: checked.Error.Message, Text: checked.Error.Hint,
		}
	}
	made.Out = strings.Join(checked.NotChecked, "\n")
	itself := junit.Suite{Name: command, Time: at}
	itself.Add(made)
	suites := []junit.Suite{itself}
	for _, one := range o.groups(checked) {
		now := junit.Suite{Name: one.name, Time: at}
		later := junit.Suite{Name: one.name + " in time to come", Time: at}
		for _, code := range certs.Codes() {
			now.Add(o.caseOf(code, one.subjects))
			later.Add(caseToCome(code, one.subjects))
		}
		suites = append(suites, now)
		if o.Timeline {
			suites = append(suites, later)
		}
	}
	return junit.Encode(command, suites...)
}

// group is what one suite is about. Its name does not depend on what was found.
type group struct {
	name     string
	subjects []result.CheckedCertificate // empty when the checks could not be made
}

func (o *Options) groups(checked *result.Check) []group {
	switch {
	case len(o.Cert) > 0:
		groups := make([]group, len(o.Cert))
		for i, path := range o.Cert {
			groups[i].name = path
			if i < len(checked.Subjects) {
				groups[i].subjects = checked.Subjects[i : i+1]
			}
		}
		return groups
	case o.Endpoint != "":
		return []group{{o.Endpoint, checked.Subjects}}
	case o.Certificate.Secret != "":
		return []group{{"Secret " + o.Certificate.Secret, checked.Subjects}}
	default:
		return []group{{"the configured certificate", checked.Subjects}}
	}
}

// caseOf is the case of one code: failed when a finding with it makes the command fail, skipped when the check was made
// on none of the certificates, otherwise passed.
func (o *Options) caseOf(code certs.Code, subjects []result.CheckedCertificate) junit.Case {
	one := junit.Case{Name: string(code)}
	var failed, said, skipped []string
	for _, s := range subjects {
		found := false
		for _, f := range s.Certificate.Findings {
			if f.Code != code {
				continue
			}
			found = true
			text := f.Message
			if len(subjects) > 1 {
				text = s.Name + ": " + text
			}
			if !o.fails(f) {
				said = append(said, fmt.Sprintf("%s: %s", f.Severity, text))
				continue
			}
			failed = append(failed, text)
			if one.Failure == nil {
				one.Failure = &junit.Message{Type: string(code), Message: text, Text: f.Hint}
			}
		}
		if reason := notMade(code, s); reason != "" && !found {
			skipped = append(skipped, reason)
		}
	}
	if len(failed) > 1 {
		one.Failure.Text = strings.Join(append(failed, one.Failure.Text), "\n")
	}
	if len(skipped) == len(subjects) {
		one.Skipped = &junit.Message{Message: "the checks could not be made"}
		if len(subjects) > 0 {
			one.Skipped.Message = strings.Join(slices.Compact(skipped), "; ")
		}
	}
	one.Out = strings.Join(said, "\n")
	return one
}

// caseToCome lists the events of the timeline that bring a finding with this code.
func caseToCome(code certs.Code, subjects []result.CheckedCertificate) junit.Case {
	one := junit.Case{Name: string(code)}
	var said []string
	read := false
	for _, s := range subjects {
		read = read || s.Certificate.Leaf != nil
		for _, event := range s.Timeline {
			for _, f := range event.Findings {
				if f.Code == code {
					said = append(said, fmt.Sprintf("%s %s: %s", event.At.Format(time.RFC3339), f.Severity, f.Message))
				}
			}
		}
	}
	if !read {
		one.Skipped = &junit.Message{Message: unread}
	}
	one.Out = strings.Join(said, "\n")
	return one
}

const unread = "the certificate could not be read"

// notMade says why the check of a code was not made on a certificate; empty when it was.
func notMade(code certs.Code, s result.CheckedCertificate) string {
	for _, one := range s.NotMade {
		if one.Code == code {
			return one.Reason
		}
	}
	if code == certs.HandshakeFailed && s.Certificate.Leaf != nil && !s.Certificate.Rehearsed {
		return "no handshake was tried, because of what is found before"
	}
	withoutCertificate := []certs.Code{ // these do not need one that can be read
		certs.SecretNotFound, certs.SecretNotPermitted, certs.SecretIncomplete, certs.TooLarge, certs.NotACertificate,
		certs.EndpointUnreachable, certs.EndpointServesOther,
	}
	if slices.Contains(withoutCertificate, code) {
		return ""
	}
	if s.Certificate.Leaf == nil {
		return unread
	}
	return ""
}

// notMadeBecause names checks that the command has not made, with one reason.
func notMadeBecause(reason string, codes ...certs.Code) []result.CheckNotMade {
	list := make([]result.CheckNotMade, len(codes))
	for i, code := range codes {
		list[i] = result.CheckNotMade{Code: code, Reason: reason}
	}
	return list
}

// notMade names the checks for which the flags give nothing to check with, each with the reason.
func (o *Options) notMade(source result.Source) []result.CheckNotMade {
	ofKey := []certs.Code{certs.KeyMismatch, certs.KeyEncrypted, certs.KeyUnreadable, certs.HandshakeFailed}
	ofCluster := []certs.Code{
		certs.SecretNotFound, certs.SecretNotPermitted, certs.SecretIncomplete, certs.ClocksDiffer,
		certs.LoadBalancerIPUnused, certs.OldClientsBreak,
	}
	ofEndpoint := []certs.Code{certs.EndpointUnreachable, certs.EndpointServesOther}
	var list []result.CheckNotMade
	switch source {
	case result.SourceCluster:
		list = notMadeBecause(`no address is asked: "pinniped ip-tls status" does so`, ofEndpoint...)
		if !o.at.IsZero() {
			list = append(list, notMadeBecause("it is checked for another time (--at)", certs.ClocksDiffer)...)
		}
	case result.SourceEndpoint:
		list = append(notMadeBecause("no cluster is asked", ofCluster...),
			notMadeBecause("only the server has the private key", ofKey...)...)
	default:
		list = append(notMadeBecause("no cluster is asked", ofCluster...),
			notMadeBecause("no endpoint is asked", ofEndpoint...)...)
		if len(o.Key) == 0 {
			list = append(list, notMadeBecause("the private key is not given (--key)", ofKey...)...)
		}
		if len(o.Names) == 0 && o.Certificate.ExternalEndpoint == "" {
			list = append(list, notMadeBecause("no name is given (--name)", certs.NameNotCovered)...)
		}
		if o.Certificate.ExternalEndpoint == "" {
			list = append(list, notMadeBecause("no endpoint is given (--external-endpoint)", certs.EndpointInvalid)...)
		}
	}
	slices.SortFunc(list, func(a, b result.CheckNotMade) int { return cmp.Compare(a.Code, b.Code) })
	return list
}
