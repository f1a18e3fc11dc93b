package iptls

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// endpoint is where clients connect.
type endpoint struct {
	url  string
	host string // without brackets
	port string
}

// parseAdvertised reads an endpoint as the status has it: https://host[:port].
func parseAdvertised(text string) (endpoint, error) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Scheme != "https" || parsed.Hostname() == "" {
		return endpoint{}, fmt.Errorf("the advertised endpoint %.100q is not an https URL", text)
	}
	port := parsed.Port()
	if port == "" {
		port = "443"
	}
	return endpoint{url: text, host: parsed.Hostname(), port: port}, nil
}

// agentView is what the status says about a wanted configuration.
type agentView struct {
	at       endpoint
	problem  string // why it does not say that the configuration is in effect; empty when it does
	disabled bool   // the proxy is switched off: nothing will be served
	message  string // of a success with warnings
}

// readStatus compares the agent's report with what is wanted.
func readStatus(issuer *configv1alpha1.CredentialIssuer, wanted configv1alpha1.ImpersonationProxySpec, bundle []byte) agentView {
	strategy := proxyStrategy(issuer)
	switch {
	case strategy == nil:
		return agentView{problem: "the agent has not reported anything about the impersonation proxy yet"}
	case strategy.Reason == configv1alpha1.ReasonDisabled:
		return agentView{disabled: true, problem: strategy.Message}
	case strategy.Status != configv1alpha1.StrategySuccess:
		return agentView{problem: fmt.Sprintf("the agent reports %s: %s", strategy.Reason, strategy.Message)}
	}
	info := proxyInfo(issuer)
	if info == nil {
		return agentView{problem: "the agent reports success, but no endpoint"}
	}
	at, err := parseAdvertised(info.Endpoint)
	if err != nil {
		return agentView{problem: err.Error()}
	}
	view := agentView{at: at}
	if _, warnings, found := strings.Cut(strategy.Message, ", but: "); found {
		view.message = warnings
	}
	if problem := wrongEndpoint(at, wanted.ExternalEndpoint); problem != "" {
		view.problem = problem
		return view
	}
	reported, err := base64.StdEncoding.DecodeString(info.CertificateAuthorityData)
	if err != nil || !certs.SameBundle(reported, bundle) {
		view.problem = fmt.Sprintf("the agent still advertises another CA bundle: %s", orNone(describePEMOrNone(reported)))
	}
	return view
}

func wrongEndpoint(at endpoint, external string) string {
	if external == "" {
		return ""
	}
	host, port, err := certs.ParseEndpoint(external)
	if err != nil {
		return ""
	}
	if port == "" {
		port = "443"
	}
	if !sameHost(host, at.host) || port != at.port {
		return fmt.Sprintf("the agent still advertises the endpoint %s", at.url)
	}
	return ""
}

func sameHost(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX == nil && errY == nil {
		return x.Unmap() == y.Unmap()
	}
	return strings.EqualFold(a, b)
}

func describePEMOrNone(bundle []byte) string {
	if len(bundle) == 0 {
		return ""
	}
	return describePEM(bundle)
}

func orNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

func (e endpoint) String() string { return net.JoinHostPort(e.host, e.port) }
