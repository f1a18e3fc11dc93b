package check

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The parts of the JUnit format that CI systems read.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"timestamp,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Failure *junitFailure `xml:"failure"`
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

// junit has a suite for each certificate, in it a case for the certificate as a whole and one for each finding. What was
// not checked is a skipped case.
func junit(result *Result) ([]byte, error) {
	all := junitSuites{Name: "pinniped ip-tls check"}
	for _, s := range result.Subjects {
		suite := junitSuite{Name: s.Name, Time: result.At.Format("2006-01-02T15:04:05")}
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
	}
	if len(result.NotChecked) > 0 {
		suite := junitSuite{Name: "not checked", Time: result.At.Format("2006-01-02T15:04:05")}
		for _, what := range result.NotChecked {
			suite.Cases = append(suite.Cases, junitCase{Class: suite.Name, Name: what, Skipped: &junitSkipped{Message: what}})
		}
		suite.count()
		all.Suites = append(all.Suites, suite)
	}
	for _, suite := range all.Suites {
		all.Tests, all.Failures = all.Tests+suite.Tests, all.Failures+suite.Failures
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
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
		if one.Skipped != nil {
			s.Skipped++
		}
	}
}
