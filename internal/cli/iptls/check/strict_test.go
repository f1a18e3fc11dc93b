package check

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui/junit"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// certFiles are files with certificates of one CA.
type certFiles struct{ good, goodKey, soon, other, otherKey, ca, missing string }

func writeFiles(t *testing.T, w *iptlstest.World) certFiles {
	t.Helper()
	directory := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const day = 24 * time.Hour
	issue := func(from, validity time.Duration) *certs.KeyPair {
		pair, err := w.CA.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, time.Now().Add(from), validity)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	other := issue(0, 5*day)
	return certFiles{
		good: write("good.pem", w.Pair.CertPEM), goodKey: write("good-key.pem", w.Pair.KeyPEM),
		soon:  write("soon.pem", issue(-8*day, 10*day).CertPEM), // less than a third is left
		other: write("other.pem", other.CertPEM), otherKey: write("other-key.pem", other.KeyPEM),
		ca: write("ca.pem", w.CA.CertPEM()), missing: filepath.Join(directory, "missing.pem"),
	}
}

func TestStrictness(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	files := writeFiles(t, w)
	for _, tt := range []struct {
		name   string
		change func(*Options)
		code   int
		says   string
	}{
		{name: "a warning is no failure", change: func(o *Options) { o.Cert = []string{files.soon} }, says: `"ok": true`},
		{
			name: "unless it is to be one", change: func(o *Options) { o.Cert, o.FailOn = []string{files.soon}, "warning" },
			code: 3, says: "--fail-on warning is given: ExpiresSoon: ",
		},
		{
			name: "an error still is one", code: 3, says: "the certificate is refused: NameNotCovered",
			change: func(o *Options) {
				o.Cert, o.FailOn, o.Names = []string{files.soon}, "warning", []string{"other.example.com"}
			},
		},
		{
			name: "an allowed error is none", change: func(o *Options) {
				o.Cert, o.FailOn, o.Names = []string{files.good}, "warning", []string{"other.example.com"}
				o.Certificate.Allow = []string{"NameNotCovered"}
			},
		},
		{
			name: "names what it does not know", code: 2, says: `invalid value "info" for --fail-on`,
			change: func(o *Options) { o.Cert, o.FailOn = []string{files.good}, "info" },
		},
		{
			name: "takes what lasts longer than asked", change: func(o *Options) {
				o.Cert, o.Within = []string{files.other}, "4d"
			},
		},
		{
			name: "refuses what ends sooner, in days", code: 3, says: "ExpiresSoon: the serving certificate",
			change: func(o *Options) { o.Cert, o.Within = []string{files.other}, "30d" },
		},
		{
			name: "refuses what ends sooner, in hours", code: 3, says: "ExpiresSoon: the serving certificate",
			change: func(o *Options) { o.Cert, o.Within = []string{files.other}, "200h30m" },
		},
		{
			name: "refuses a CA that ends sooner", code: 3, says: "a CA that clients need",
			change: func(o *Options) { o.Cert, o.Within = []string{files.other}, "30000d" },
		},
		{
			name: "wants a time span", code: 2, says: "not a number of days",
			change: func(o *Options) { o.Cert, o.Within = []string{files.good}, "xd" },
		},
		{
			name: "wants a time span that can be counted", code: 2, says: "not a number of days from 1 to 106751",
			change: func(o *Options) { o.Cert, o.Within = []string{files.good}, "106752d" },
		},
		{
			name: "wants a time span of some length", code: 2, says: "longer than nothing",
			change: func(o *Options) { o.Cert, o.Within = []string{files.good}, "-1h" },
		},
		{
			name: "reports each of several files, and names the bad one", code: 3, says: "soon.pem: there is a warning",
			change: func(o *Options) { o.Cert, o.FailOn = []string{files.good, files.soon}, "warning" },
		},
		{
			name: "pairs keys with certificates", change: func(o *Options) {
				o.Cert, o.Key = []string{files.good, files.other}, []string{files.goodKey, files.otherKey}
			},
		},
		{
			name: "notices keys that are exchanged", code: 3, says: "KeyMismatch",
			change: func(o *Options) {
				o.Cert, o.Key = []string{files.good, files.other}, []string{files.otherKey, files.goodKey}
			},
		},
		{
			name: "wants a key for each certificate, or none", code: 2, says: "--cert is given 2 times, --key 1 times",
			change: func(o *Options) {
				o.Cert, o.Key = []string{files.good, files.other}, []string{files.goodKey}
			},
		},
		{
			name: "reads stdin once", code: 2, says: "only one --cert can be read from stdin",
			change: func(o *Options) { o.Cert = []string{"-", "-"} },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, checked := runCheck(t, w, func(o *Options) {
				o.Session.Connect, o.Certificate.CABundle = nil, files.ca // no cluster
				tt.change(o)
			}, "cert", "ca-bundle")
			if tt.says == "" {
				r.Check(t, tt.code)
			} else {
				r.Check(t, tt.code, tt.says)
			}
			if tt.code != 2 && checked.OK != (tt.code == 0) {
				t.Errorf("ok is %v", checked.OK)
			}
		})
	}
	_, checked := runCheck(t, w, func(o *Options) {
		o.Session.Connect, o.Certificate.CABundle, o.Cert = nil, files.ca, []string{files.good, files.soon}
	}, "cert", "ca-bundle")
	if len(checked.Subjects) != 2 || checked.Subjects[0].Name != files.good || checked.Subjects[1].Name != files.soon ||
		!checked.Subjects[1].Certificate.Has(certs.ExpiresSoon) {
		t.Errorf("the reports are %+v", checked.Subjects)
	}
}

// TestJUnit runs the command on files of all sorts: the names of the cases are the same each time.
func TestJUnit(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	files := writeFiles(t, w)
	run := func(code int, path string, change func(*Options)) junit.Report {
		var options *Options
		r, _ := runCheck(t, w, func(o *Options) {
			options = o
			o.Session.Connect, o.Session.Output, o.Certificate.CABundle, o.Timeline = nil, "junit", files.ca, true
			o.Cert = []string{path}
			if change != nil {
				change(o)
			}
		}, "cert", "ca-bundle")
		r.Check(t, code)
		var report junit.Report
		_ = options.reported(r.Err) // as the command does; it returns r.Err
		if err := xml.Unmarshal(r.Out.Bytes(), &report); err != nil {
			t.Fatalf("%v in %s", err, r.Out.String())
		}
		return report
	}
	names := func(report junit.Report) (all []string) {
		for i, suite := range report.Suites {
			for _, one := range suite.Cases {
				all = append(all, strings.Repeat("later ", max(0, i-1))+one.Name)
			}
		}
		return all
	}
	find := func(report junit.Report, suite int, code certs.Code) junit.Case {
		for _, one := range report.Suites[suite].Cases {
			if one.Name == string(code) {
				return one
			}
		}
		t.Fatalf("there is no case %s", code)
		return junit.Case{}
	}
	good := run(0, files.good, nil)
	want := 1 + 2*len(certs.Codes())
	if good.Failures+good.Errors != 0 || good.Tests != want || len(names(good)) != want {
		t.Errorf("%d tests, want %d; %d failures, %d errors", good.Tests, want, good.Failures, good.Errors)
	}
	if one := find(good, 1, certs.KeyMismatch); one.Skipped == nil || !strings.Contains(one.Skipped.Message, "--key") {
		t.Errorf("without a key: %+v", one)
	}
	if one := find(good, 1, certs.NotACertificate); one.Skipped != nil || one.Failure != nil {
		t.Errorf("it has not passed: %+v", one)
	}
	if one := find(good, 2, certs.Expired); one.Failure != nil || !strings.Contains(one.Out, "error: ") {
		t.Errorf("what will expire: %+v", one)
	}
	for _, tt := range []struct {
		name                      string
		report                    junit.Report
		failures, errors, skipped int
		failed                    certs.Code
	}{
		{
			name: "a wrong name", report: run(3, files.good, func(o *Options) { o.Names = []string{"other.example.com"} }),
			failures: 1, skipped: good.Skipped - 1, failed: certs.NameNotCovered, // that check is made now
		},
		{
			name: "a warning", report: run(3, files.soon, func(o *Options) { o.FailOn = "warning" }), failures: 1,
			skipped: good.Skipped, failed: certs.ExpiresSoon,
		},
		{
			name: "a key in place of the certificate", report: run(3, files.goodKey, nil), failures: 1,
			failed: certs.NotACertificate, skipped: 2*len(certs.Codes()) - 2, // TooLarge is looked at, too
		},
		{name: "no file", report: run(2, files.missing, nil), errors: 1, skipped: 2 * len(certs.Codes())},
	} {
		if diff := cmp.Diff(names(good), names(tt.report)); diff != "" {
			t.Errorf("%s: the cases are not those of a good one (-good +this):\n%s", tt.name, diff)
		}
		got := tt.report
		if got.Failures != tt.failures || got.Errors != tt.errors || got.Skipped != tt.skipped {
			t.Errorf("%s: %d failures, %d errors, %d skipped; want %d, %d, %d", tt.name, got.Failures, got.Errors,
				got.Skipped, tt.failures, tt.errors, tt.skipped)
		}
		if tt.failed != "" && find(got, 1, tt.failed).Failure == nil {
			t.Errorf("%s: %s has not failed", tt.name, tt.failed)
		}
	}
	two := run(0, files.good, func(o *Options) { o.Cert = append(o.Cert, files.other) })
	if two.Tests != 1+4*len(certs.Codes()) || two.Suites[3].Name != files.other {
		t.Errorf("two files: %d cases", two.Tests)
	}
}

// TestJUnitOfEndpoint wants one suite, however many addresses there are and whatever they present.
func TestJUnitOfEndpoint(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	r, _ := runCheck(t, w, func(o *Options) {
		o.Session.Connect, o.Session.Network, o.Session.Output = nil, iptlstest.Network{}, "junit"
		o.Endpoint = "proxy.example.com:8443"
	}, "endpoint")
	r.Check(t, 1, `<testsuite name="proxy.example.com:8443" `, `<failure type="EndpointUnreachable"`)
	var report junit.Report
	if err := xml.Unmarshal(r.Out.Bytes(), &report); err != nil || report.Tests != 1+len(certs.Codes()) ||
		report.Failures != 1 {
		t.Errorf("%v, %+v", err, report)
	}
}

// TestNotMade wants the checks that were not made in the result for programs.
func TestNotMade(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	files := writeFiles(t, w)
	_, checked := runCheck(t, w, func(o *Options) {
		o.Session.Connect, o.Certificate.CABundle, o.Cert = nil, files.ca, []string{files.good}
	}, "cert", "ca-bundle")
	reasons := map[certs.Code]string{}
	for _, one := range checked.Subjects[0].NotMade {
		reasons[one.Code] = one.Reason
	}
	if reasons[certs.OldClientsBreak] != "no cluster is asked" || reasons[certs.NameNotCovered] == "" ||
		checked.Source != result.SourceFile {
		t.Errorf("not made: %v", reasons)
	}
}
