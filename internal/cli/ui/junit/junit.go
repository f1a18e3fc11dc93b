// Package junit writes results in JUnit's format, as far as CI systems read it.
package junit

import (
	"encoding/xml"
	"time"
)

// Report is all that a command has to say.
type Report struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr"`
	Suites   []Suite  `xml:"testsuite"`
}

// Suite is a part of a Report: one certificate, for example.
type Suite struct {
	Name     string `xml:"name,attr"`
	Tests    int    `xml:"tests,attr"`
	Failures int    `xml:"failures,attr"`
	Errors   int    `xml:"errors,attr"`
	Skipped  int    `xml:"skipped,attr"`
	Time     string `xml:"timestamp,attr,omitempty"`
	Cases    []Case `xml:"testcase"`
}

// Case is one thing that was looked at. It has passed when it has neither Failure, Error nor Skipped.
type Case struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Seconds string   `xml:"time,attr,omitempty"`
	Failure *Message `xml:"failure"`
	Error   *Message `xml:"error"`
	Skipped *Message `xml:"skipped"`
	// Out is further text; it does not change the verdict.
	Out string `xml:"system-out,omitempty"`
}

// Message says why a case has not passed.
type Message struct {
	Type    string `xml:"type,attr,omitempty"`
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// Timestamp writes a time as the format wants it.
func Timestamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05") }

// Add adds a case and counts it. The suite's name becomes its class.
func (s *Suite) Add(one Case) {
	one.Class = s.Name
	s.Cases = append(s.Cases, one)
	s.Tests++
	if one.Failure != nil {
		s.Failures++
	}
	if one.Error != nil {
		s.Errors++
	}
	if one.Skipped != nil {
		s.Skipped++
	}
}

// Encode returns the report of these suites.
func Encode(name string, suites ...Suite) ([]byte, error) {
	all := Report{Name: name, Suites: suites}
	for _, suite := range suites {
		all.Tests += suite.Tests
		all.Failures += suite.Failures
		all.Errors += suite.Errors
		all.Skipped += suite.Skipped
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}
