package certs

import (
	"strings"
	"testing"
	"time"
)

// TestMessagesAboutDatesStayTrue checks the same certificate twice, hours apart. Message stays the same; String says
// how far away the date is.
func TestMessagesAboutDatesStayTrue(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	const hour = time.Hour
	for _, tt := range []struct {
		name          string
		from, to      time.Duration
		within        time.Duration
		code          Code
		shown, latest string
	}{
		{name: "an end", from: -90 * day, to: -3 * hour, code: Expired, shown: ", 3 hours ago", latest: ", 5 hours ago"},
		{name: "a beginning", from: 9 * hour, to: 90 * day, code: NotYetValid, shown: ", in 9 hours", latest: ", in 7 hours"},
		{
			name: "a beginning within the skew", from: 2*hour + 4*time.Minute, to: 90 * day, code: NotYetValid,
			shown: ", in 2 hours", latest: ", in 4 minutes; clients",
		},
		{
			name: "an end soon", from: -90 * day, to: 9 * hour, code: ExpiresSoon,
			shown: ", in 9 hours: less than a tenth", latest: ", in 7 hours: less than a tenth",
		},
		{
			name: "an end that is sooner than asked for", from: -hour, to: 9 * hour, within: day, code: ExpiresSoon,
			shown: ", in 9 hours, but it must be valid for 24 hours", latest: ", in 7 hours, but it must be valid for 24 hours",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := inputFor(t, p.root, p.inter.newLeaf(t, validity(tt.from, tt.to)), p.inter)
			in.ExpiresWithin = tt.within
			first, _ := Check(in).First()
			in.Now = in.Now.Add(2 * hour)
			later, _ := Check(in).First()
			if first.Code != tt.code || later.Code != tt.code {
				t.Fatalf("want %s twice, got %v and %v", tt.code, first, later)
			}
			if first.Message != later.Message && later.Severity == first.Severity {
				t.Errorf("the message has become %q, from %q", later.Message, first.Message)
			}
			for _, relative := range []string{" ago", ", in "} {
				if strings.Contains(first.Message, relative) {
					t.Errorf("want no %q in %q", relative, first.Message)
				}
			}
			if !strings.Contains(first.String(), tt.shown) || !strings.Contains(later.String(), tt.latest) {
				t.Errorf("want %q and later %q shown, got %q and %q", tt.shown, tt.latest, first, later)
			}
		})
	}
}
