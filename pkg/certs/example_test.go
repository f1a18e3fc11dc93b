package certs_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func Example() {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ca, err := certs.NewCA("Example CA", now, 10*365*24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	pair, err := ca.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, now, 90*24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	report := certs.Check(certs.Input{
		CertPEM:  pair.CertPEM,
		KeyPEM:   pair.KeyPEM,
		Bundle:   ca.CertPEM(),
		Endpoint: "proxy.example.com:8443",
		Names:    []certs.Name{{Value: "203.0.113.7", Source: "the Service's ingress"}},
		Now:      now,
	})
	for _, finding := range report.Errors() {
		fmt.Println(finding)
	}
	// Output: NameNotCovered: the serving certificate is not valid for "203.0.113.7" (the Service's ingress): it has no IP address, only DNS names "proxy.example.com"
}

func ExampleExplain() {
	explanation, _ := certs.Explain(certs.NoNames)
	fmt.Println(explanation.Consequence)
	// Output:
	// No client accepts it for any name.
}

func ExampleParseEndpoint() {
	host, port, err := certs.ParseEndpoint("[2001:db8::7]:8443")
	fmt.Println(host, port, err)
	_, _, err = certs.ParseEndpoint("https://proxy.example.com")
	fmt.Println(err)
	// Output:
	// 2001:db8::7 8443 <nil>
	// endpoint "https://proxy.example.com" is a URL; write HOST or HOST:PORT only
}

func ExampleTimeline() {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ca, err := certs.NewCA("Example CA", now, 10*365*24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	pair, err := ca.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, now, 90*24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, event := range certs.Timeline(
		certs.Input{CertPEM: pair.CertPEM, KeyPEM: pair.KeyPEM, Bundle: ca.CertPEM(), Now: now},
	) {
		for _, finding := range event.Findings {
			fmt.Println(event.At.Format(time.DateOnly), finding.Code, "breaks:", event.Breaks)
		}
	}
	// Output:
	// 2027-01-20 ExpiresSoon breaks: false
	// 2027-02-10 ExpiresSoon breaks: false
	// 2027-02-19 Expired breaks: true
}

func ExampleCheckServed() {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ca, err := certs.NewCA("Example CA", now, 24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	pair, err := ca.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, now, time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	chain, _ := certs.ParseBundle(pair.CertPEM)
	findings := certs.CheckServed(
		certs.Expected{SHA256: certs.Fingerprint(chain[0].Raw), Host: "proxy.example.com", Bundle: ca.CertPEM(), Now: now},
		[]certs.Served{
			{Address: "203.0.113.7:443", Chain: chain},
			{Address: "203.0.113.8:443", Err: errors.New("connection refused")},
		},
	)
	for _, finding := range findings {
		fmt.Println(finding)
	}
	// Output:
	// EndpointUnreachable: 203.0.113.8:443 cannot be checked: connection refused
}
