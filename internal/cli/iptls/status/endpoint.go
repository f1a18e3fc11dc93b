package status

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// expectedSHA256 returns the fingerprint that must be presented, or "" if any certificate that verifies is fine.
func (l *snapshot) expectedSHA256() string {
	switch serving := l.issuer.Status.ServingCertificate; {
	case l.waits && serving != nil:
		return serving.SHA256
	case len(l.chain) > 0:
		return certs.Fingerprint(l.chain[0].Raw)
	case serving != nil && l.Configured != nil && strings.EqualFold(string(l.Configured.Source), string(serving.Source)):
		return serving.SHA256
	default:
		return ""
	}
}

// probeEndpoint probes each address.
func (o *Options) probeEndpoint(ctx context.Context, l *snapshot) {
	at := l.view.At
	if at.Host == "" || l.view.Disabled {
		return
	}
	met, skipped, err := session.Ask(ctx, o.Session.Network, at)
	if err != nil {
		l.problem(string(certs.EndpointUnreachable), "resolving %q: %s", at.Host, err)
		return
	}
	if len(met)+len(skipped) == 0 {
		l.problem(string(certs.EndpointUnreachable), "%q resolves to no address", at.Host)
	}
	want := certs.Expected{SHA256: l.expectedSHA256(), Host: at.Host, Bundle: l.bundle, Now: l.At}
	any := want
	any.SHA256 = "" // clients accept any valid certificate
	for _, one := range met {
		served := one.Served
		if one.Silent() {
			served.Err = nil // check the certificate first
		}
		found := probed{Met: one}
		if problems := certs.CheckServed(any, []certs.Served{served}); len(problems) > 0 {
			found.refused = &problems[0]
		}
		l.probed = append(l.probed, found)
		address := result.Address{Address: one.Address}
		if len(one.Chain) > 0 {
			until := one.Chain[0].NotAfter.UTC()
			address.SHA256, address.NotAfter = certs.Fingerprint(one.Chain[0].Raw), &until
		}
		if problems := certs.CheckServed(want, []certs.Served{served}); len(problems) > 0 {
			address.Code = problems[0].Code
			address.Problem = strings.TrimPrefix(problems[0].Message, one.Address+" ")
		} else if one.Silent() {
			address.Problem = silence(one)
		}
		l.Addresses = append(l.Addresses, address)
	}
	for _, address := range skipped {
		l.Addresses = append(l.Addresses,
			result.Address{Address: address, Skipped: true, Problem: "there is no route to it from here"})
	}
}

// silence describes how an address fails to respond.
func silence(one session.Met) string {
	if one.Err != nil {
		return "presents its certificate, but " + one.Err.Error()
	}
	return fmt.Sprintf("responds to a request with %d %s", one.Status, http.StatusText(one.Status))
}
