package certs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestExpiresWithin shows that errors name what expires too soon, and not a CA that clients do not need.
func TestExpiresWithin(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	// The certificates have been valid for an hour.
	ca := must.Get(NewCA("Short CA", now.Add(-time.Hour), 60*day))(t)
	pair := must.Get(ca.IssueServing(SANs{DNSNames: []string{"proxy.example.com"}}, now.Add(-time.Hour), 20*day))(t)
	other := must.Get(NewCA("Unneeded CA", now.Add(-time.Hour), 3*day))(t)
	for _, tt := range []struct {
		name   string
		within time.Duration
		at     time.Time
		bundle []byte
		want   []string // parts of the errors, in order
	}{
		{name: "is off"},
		{name: "takes what lasts longer", within: 10 * day},
		{
			name: "names the serving certificate", within: 30 * day,
			want: []string{"ExpiresSoon: the serving certificate (no subject, DNS name \"proxy.example.com\") expires on "},
		},
		{
			name: "names the CA, too", within: 90 * day,
			want: []string{"the serving certificate", "ExpiresSoon: a CA that clients need (\"CN=Short CA\") expires on "},
		},
		{
			name: "passes over a CA that clients do not need", within: 10 * day,
			bundle: slices.Concat(ca.CertPEM(), other.CertPEM()),
		},
		{
			name: "replaces the warning about the share of the lifetime", within: 10 * day, at: now.Add(15 * day),
			want: []string{"it must be valid for 10 days"},
		},
		{
			name: "adds nothing to what has expired", within: 10 * day, at: now.Add(30 * day), want: []string{"Expired: "},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := Input{
				CertPEM: pair.CertPEM, KeyPEM: pair.KeyPEM, Bundle: ca.CertPEM(), Now: now, ExpiresWithin: tt.within,
				Endpoint: "proxy.example.com",
			}
			if !tt.at.IsZero() {
				in.Now = tt.at
			}
			if tt.bundle != nil {
				in.Bundle = tt.bundle
			}
			report := Check(in)
			errs := report.Errors()
			if len(errs) != len(tt.want) {
				t.Fatalf("errors %q, want %q", errs, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(errs[i].String(), want) {
					t.Errorf("%q does not say %q", errs[i], want)
				}
			}
			soon := 0
			for _, f := range report.Findings {
				if f.Code == ExpiresSoon && strings.Contains(f.Message, "serving certificate") {
					soon++
				}
			}
			if soon > 1 {
				t.Errorf("that it expires soon is told %d times: %v", soon, report.Findings)
			}
		})
	}
}
