package certs

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity says what a finding means for the certificate.
type Severity int

// The severities. Only an error refuses a certificate.
const (
	// SeverityInfo informs, and asks for no action.
	SeverityInfo Severity = iota
	// SeverityWarning goes on: some clients have trouble, or all of them will later.
	SeverityWarning
	// SeverityError refuses the certificate, unless its code is allowed by name.
	SeverityError
)

// String returns "info", "warning" or "error".
func (s Severity) String() string {
	switch s {
	case SeverityInfo:
		return "info"
	case SeverityWarning:
		return "warning"
	case SeverityError:
		return "error"
	default:
		return fmt.Sprintf("Severity(%d)", int(s))
	}
}

// MarshalText writes the severity as String does, so that JSON and YAML show a word.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Severity) UnmarshalText(text []byte) error {
	for _, known := range []Severity{SeverityInfo, SeverityWarning, SeverityError} {
		if string(text) == known.String() {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("unknown severity %q (known: info, warning, error)", clip(string(text), 40))
}

// Finding is what one check has to say. Message and Hint are bounded in length and hold nothing secret, so they may go
// into a status, an event or a log line as they are.
type Finding struct {
	// Code is stable: scripts compare it, Explain explains it.
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Message names the culprit and what is wrong with it. It stays true when it is kept: times in it are dates, and how
	// far away they are is only in what String returns.
	Message string `json:"message"`
	// Hint says what to do about it; it may be empty.
	Hint string `json:"hint,omitempty"`
	// Allowed is true for an error that Input.Allow lets through.
	Allowed bool `json:"allowed,omitempty"`
	// Pending is true when waiting may fix it: an issuer has not finished the Secret yet.
	Pending bool `json:"pending,omitempty"`

	// Presented is true for a finding of CheckServed about an address that presents the expected certificate: only what
	// clients verify it with, or the name under which they connect, does not fit it.
	Presented bool `json:"-"`

	// date is a date in Message, and away how far away that is at the time of the check; both are empty where Message
	// has none.
	date, away string

	// final findings cannot be allowed: what they are about cannot be served, or must not be published.
	final bool
}

// Refuses says whether the finding forbids the use of the certificate.
func (f Finding) Refuses() bool { return f.Severity == SeverityError && !f.Allowed }

// CanBeAllowed says whether naming the code in Input.Allow lets this finding through.
func (f Finding) CanBeAllowed() bool {
	return f.Severity == SeverityError && !f.final && Allowable(f.Code)
}

// String returns the finding in one line, "CODE: message", for showing at once: how far away a date is stands next to
// it.
func (f Finding) String() string {
	message := f.Message
	if f.date != "" {
		message = strings.Replace(message, f.date, f.date+", "+f.away, 1)
	}
	return fmt.Sprintf("%s: %s", f.Code, message)
}

// within has String say how far a date in the message is in the future.
func (f Finding) within(now, at time.Time) Finding {
	f.date, f.away = date(at), "in "+span(now, at)
	return f
}

// ago has String say how far a date in the message is in the past.
func (f Finding) ago(now, at time.Time) Finding {
	f.date, f.away = date(at), span(at, now)+" ago"
	return f
}

// maxFindingsPerCode bounds a report: a hostile bundle could otherwise produce thousands of findings.
const maxFindingsPerCode = 10

// findings collects what the checks of one run say.
type findings struct {
	list  []Finding
	count map[Code]int
	allow []Code
}

func newFindings(allow []Code) *findings {
	return &findings{list: []Finding{}, count: map[Code]int{}, allow: allow}
}

func (fs *findings) add(f Finding) {
	f.Message = clip(f.Message, maxMessage)
	f.Hint = clip(f.Hint, maxMessage)
	f.Allowed = f.CanBeAllowed() && slices.Contains(fs.allow, f.Code)
	fs.count[f.Code]++
	if fs.count[f.Code] > maxFindingsPerCode && (!f.Refuses() || fs.refusesBy(f.Code)) {
		return // result says how many were left out; the one that refuses is never left out
	}
	fs.list = append(fs.list, f)
}

func (fs *findings) addAll(list []Finding) {
	for _, f := range list {
		fs.add(f)
	}
}

// has says whether there is an error with one of the codes, allowed or not.
func (fs *findings) has(codes ...Code) bool {
	return slices.ContainsFunc(fs.list, func(f Finding) bool {
		return f.Severity == SeverityError && slices.Contains(codes, f.Code)
	})
}

func (fs *findings) refusesBy(code Code) bool {
	return slices.ContainsFunc(fs.list, func(f Finding) bool { return f.Code == code && f.Refuses() })
}

// result returns the findings; where some were left out, the last one of that code says how many.
func (fs *findings) result() []Finding {
	for code, n := range fs.count {
		kept := 0
		last := -1
		for i, f := range fs.list {
			if f.Code == code {
				kept++
				last = i
			}
		}
		if more := n - kept; more > 0 {
			fs.list[last].Message += fmt.Sprintf(" (and %d more findings of this kind)", more)
		}
	}
	return fs.list
}

// finding makes a finding with the severity that its code usually has.
func finding(code Code, hint, format string, args ...any) Finding {
	return Finding{Code: code, Severity: code.severity(), Message: fmt.Sprintf(format, args...), Hint: hint}
}

func (f Finding) withSeverity(s Severity) Finding {
	f.Severity = s
	return f
}

func (f Finding) asFinal() Finding {
	f.final = true
	return f
}

// NewFinding makes a finding for what a caller has found out itself, such as SecretNotFound, with the severity and the
// fix that the catalogue has for the code. The message is clipped to a bounded length.
func NewFinding(code Code, message string) Finding {
	f := Finding{Code: code, Severity: code.severity(), Message: clip(message, maxMessage)}
	if e, ok := Explain(code); ok {
		f.Hint = e.Fix
	}
	return f
}
