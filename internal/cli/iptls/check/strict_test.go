package check

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// certFiles are the paths of certificates of one CA.
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
		soon:  write("soon.pem", issue(-8*day, 10*day).CertPEM), // less than a third of its lifetime is left
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
			code: 3, says: "--fail-on warning is set, and there is a warning: ExpiresSoon: ",
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
			name: "wants a time span of some length", code: 2, says: "not a positive duration",
			change: func(o *Options) { o.Cert, o.Within = []string{files.good}, "-1h" },
		},
		{
			name: "reports each of several files, and names the bad one", code: 3, says: "soon.pem: --fail-on warning is set, and there is a warning",
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

// TestNotMade checks that JSON output lists the checks that were not made.
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
	if reasons[certs.OldClientsBreak] != "no cluster was read" || reasons[certs.NameNotCovered] == "" ||
		checked.Source != result.SourceFile {
		t.Errorf("not made: %v", reasons)
	}
}
