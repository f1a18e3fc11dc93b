package check

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
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

// The parts of SARIF 2.1.0 that are written here.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string       `json:"id"`
		ShortDescription sarifText    `json:"shortDescription"`
		FullDescription  sarifText    `json:"fullDescription"`
		Help             sarifText    `json:"help"`
		Default          sarifDefault `json:"defaultConfiguration"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifDefault struct {
		Level string `json:"level"`
	}
	sarifResult struct {
		RuleID       string             `json:"ruleId"`
		RuleIndex    int                `json:"ruleIndex"`
		Level        string             `json:"level"`
		Message      sarifText          `json:"message"`
		Locations    []sarifLocation    `json:"locations"`
		Suppressions []sarifSuppression `json:"suppressions,omitempty"`
	}
	sarifLocation struct {
		Physical *sarifPhysical `json:"physicalLocation,omitempty"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
		Kind string `json:"kind"`
	}
	sarifSuppression struct {
		Kind          string `json:"kind"`
		Justification string `json:"justification"`
	}
)

// sarif has a result for each finding, and a rule for each code that was found.
func sarif(result *Result, version string) ([]byte, error) {
	run := sarifRun{Tool: sarifTool{sarifDriver{Name: "pinniped ip-tls check", Version: version, Rules: []sarifRule{}}}, Results: []sarifResult{}}
	rules := &run.Tool.Driver.Rules
	for _, s := range result.Subjects {
		location := sarifLocation{Logical: []sarifLogical{{Name: s.Name, Kind: "resource"}}}
		if s.file != "" {
			location = sarifLocation{Physical: &sarifPhysical{sarifArtifact{(&url.URL{Path: filepath.ToSlash(s.file)}).String()}}}
		}
		for _, f := range s.Certificate.Findings {
			index := slices.IndexFunc(*rules, func(r sarifRule) bool { return r.ID == string(f.Code) })
			if index < 0 {
				index = len(*rules)
				*rules = append(*rules, ruleFor(f.Code))
			}
			one := sarifResult{
				RuleID: string(f.Code), RuleIndex: index, Level: sarifLevel(f.Severity), Message: sarifText{f.Message},
				Locations: []sarifLocation{location},
			}
			if f.Hint != "" {
				one.Message.Text += ". " + f.Hint
			}
			if f.Allowed {
				one.Suppressions = []sarifSuppression{{Kind: "external", Justification: "--allow " + string(f.Code)}}
			}
			run.Results = append(run.Results, one)
		}
	}
	text, err := json.MarshalIndent(sarifLog{
		Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run},
	}, "", "  ")
	return append(text, '\n'), err
}

func ruleFor(code certs.Code) sarifRule {
	e, _ := certs.Explain(code)
	return sarifRule{
		ID: string(code), ShortDescription: sarifText{e.Cause}, FullDescription: sarifText{e.Consequence}, Help: sarifText{e.Fix},
		Default: sarifDefault{sarifLevel(e.Severity)},
	}
}

func sarifLevel(s certs.Severity) string {
	if s == certs.SeverityInfo {
		return "note"
	}
	return s.String()
}
