package certs

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity is the severity of a finding.
type Severity int

// The severities. Only an error refuses the certificate.
const (
	// SeverityInfo requires no action.
	SeverityInfo Severity = iota
	// SeverityWarning does not refuse the certificate: some clients fail, or all will later.
	SeverityWarning
	// SeverityError refuses the certificate, unless it is allowed.
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

// MarshalText returns the severity as a word, for JSON and YAML.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses what MarshalText returns.
func (s *Severity) UnmarshalText(text []byte) error {
	for _, known := range []Severity{SeverityInfo, SeverityWarning, SeverityError} {
		if string(text) == known.String() {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("unknown severity %q (known: info, warning, error)", clip(string(text), 40))
}

// Finding is the result of a check. Message and Hint are limited in length and contain no secrets, so they are safe for
// a status, an event or a log message.
type Finding struct {
	// Code is stable: scripts compare it, and Explain explains it.
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Message names the object and its problem. It contains dates rather than durations, so it remains true when
	// stored; String adds how far away a date is.
	Message string `json:"message"`
	// Hint says how to fix it; it may be empty.
	Hint string `json:"hint,omitempty"`
	// Allowed is true for an error that Input.Allow allows.
	Allowed bool `json:"allowed,omitempty"`
	// Pending is true if waiting may fix it, because an issuer has not completed the Secret yet.
	Pending bool `json:"pending,omitempty"`

	// Presented is true for a finding of CheckServed about an address that presents the expected certificate, which
	// does not fit the clients' CA bundle or name.
	Presented bool `json:"-"`

	// date is a date in Message, and away how far away it was at the time of the check; both are empty if Message has
	// none.
	date, away string

	// final findings cannot be allowed: the certificate cannot be served, or must not be published.
	final bool
}

// Refuses reports whether the finding refuses the certificate.
func (f Finding) Refuses() bool { return f.Severity == SeverityError && !f.Allowed }

// CanBeAllowed reports whether Input.Allow can allow this finding.
func (f Finding) CanBeAllowed() bool {
	return f.Severity == SeverityError && !f.final && Allowable(f.Code)
}

// String returns "CODE: message" for immediate display: it adds how far away a date is.
func (f Finding) String() string {
	message := f.Message
	if f.date != "" {
		message = strings.Replace(message, f.date, f.date+", "+f.away, 1)
	}
	return fmt.Sprintf("%s: %s", f.Code, message)
}

// within makes String say how far a date in the message is in the future.
func (f Finding) within(now, at time.Time) Finding {
	f.date, f.away = date(at), "in "+span(now, at)
	return f
}

// ago makes String say how far a date in the message is in the past.
func (f Finding) ago(now, at time.Time) Finding {
	f.date, f.away = date(at), span(at, now)+" ago"
	return f
}

// maxFindingsPerCode limits a report: a hostile bundle could otherwise cause thousands of findings.
const maxFindingsPerCode = 10

// findings collects the findings of one call of Check.
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
		return // result adds the number of omitted findings; the first that refuses is never omitted
	}
	fs.list = append(fs.list, f)
}

func (fs *findings) addAll(list []Finding) {
	for _, f := range list {
		fs.add(f)
	}
}

// has reports whether there is an error with one of the codes, allowed or not.
func (fs *findings) has(codes ...Code) bool {
	return slices.ContainsFunc(fs.list, func(f Finding) bool {
		return f.Severity == SeverityError && slices.Contains(codes, f.Code)
	})
}

func (fs *findings) refusesBy(code Code) bool {
	return slices.ContainsFunc(fs.list, func(f Finding) bool { return f.Code == code && f.Refuses() })
}

// result returns the findings. If some were omitted, the last one of that code says how many.
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

// finding returns a finding with the usual severity of its code.
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

// NewFinding returns a finding of a caller, such as SecretNotFound, with the severity and the fix of the catalogue. The
// message is truncated.
func NewFinding(code Code, message string) Finding {
	f := Finding{Code: code, Severity: code.severity(), Message: clip(message, maxMessage)}
	if e, ok := Explain(code); ok {
		f.Hint = e.Fix
	}
	return f
}
