package check

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The parts of the JUnit format that CI systems read.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr,omitempty"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr,omitempty"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"timestamp,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Failure *junitFailure `xml:"failure"`
		Error   *junitFailure `xml:"error"`
		Skipped *junitSkipped `xml:"skipped"`
		Out     string        `xml:"system-out,omitempty"`
	}
	junitFailure struct {
		Type    string `xml:"type,attr"`
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	junitSkipped struct {
		Message string `xml:"message,attr"`
	}
)

// junit has a suite for each certificate, in it a case for the certificate as a whole and one for each finding. With
// --timeline a second suite lists what will go wrong, and when; that fails nothing today. What was not checked is a
// skipped case, and a check that could not be made is a case with an error.
func junit(checked *result.Check) ([]byte, error) {
	all := junitSuites{Name: "pinniped ip-tls check"}
	for _, s := range checked.Subjects {
		suite := junitSuite{Name: s.Name, Time: checked.At.Format("2006-01-02T15:04:05")}
		whole := junitCase{Class: s.Name, Name: "the certificate is good"}
		if errs := s.Certificate.Errors(); len(errs) > 0 {
			whole.Failure = &junitFailure{Type: string(errs[0].Code), Message: errs[0].Message, Text: lines(errs)}
		}
		suite.Cases = append(suite.Cases, whole)
		for _, f := range s.Certificate.Findings {
			one := junitCase{Class: s.Name, Name: string(f.Code)}
			if f.Refuses() {
				one.Failure = &junitFailure{Type: string(f.Code), Message: f.Message, Text: f.Hint}
			} else {
				one.Out = fmt.Sprintf("%s: %s", f.Severity, f.Message)
			}
			suite.Cases = append(suite.Cases, one)
		}
		suite.count()
		all.Suites = append(all.Suites, suite)
		if len(s.Timeline) > 0 {
			all.Suites = append(all.Suites, timelineSuite(s, suite.Time))
		}
	}
	if checked.Error != nil {
		suite := junitSuite{Name: all.Name, Time: checked.At.Format("2006-01-02T15:04:05"), Cases: []junitCase{{
			Class: all.Name, Name: "the check can be made",
			Error: &junitFailure{
				Type:    fmt.Sprintf("exit code %d", checked.Error.ExitCode),
				Message: checked.Error.Message, Text: checked.Error.Hint,
			},
		}}}
		suite.count()
		all.Suites = append(all.Suites, suite)
	}
	if len(checked.NotChecked) > 0 {
		suite := junitSuite{Name: "not checked", Time: checked.At.Format("2006-01-02T15:04:05")}
		for _, what := range checked.NotChecked {
			suite.Cases = append(suite.Cases,
				junitCase{Class: suite.Name, Name: what, Skipped: &junitSkipped{Message: what}})
		}
		suite.count()
		all.Suites = append(all.Suites, suite)
	}
	for _, suite := range all.Suites {
		all.Tests, all.Failures, all.Errors = all.Tests+suite.Tests, all.Failures+suite.Failures, all.Errors+
			suite.Errors
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}

// timelineSuite has a case for each thing that will go wrong.
func timelineSuite(s result.CheckedCertificate, at string) junitSuite {
	suite := junitSuite{Name: s.Name + " in time to come", Time: at}
	for _, event := range s.Timeline {
		for _, f := range event.Findings {
			suite.Cases = append(suite.Cases, junitCase{
				Class: suite.Name, Name: fmt.Sprintf("%s on %s", f.Code, event.At.Format(time.RFC3339)),
				Out: fmt.Sprintf("%s: %s", f.Severity, f.Message),
			})
		}
	}
	suite.count()
	return suite
}

func lines(findings []certs.Finding) string {
	all := make([]string, len(findings))
	for i, f := range findings {
		all[i] = f.String()
	}
	return strings.Join(all, "\n")
}

func (s *junitSuite) count() {
	s.Tests = len(s.Cases)
	for _, one := range s.Cases {
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
}
