package check

import (
	"cmp"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// notMadeBecause returns checks that were not made, all with the same reason.
func notMadeBecause(reason string, codes ...certs.Code) []result.CheckNotMade {
	list := make([]result.CheckNotMade, len(codes))
	for i, code := range codes {
		list[i] = result.CheckNotMade{Code: code, Reason: reason}
	}
	return list
}

// notMade returns the checks for which the flags give no input, with the reasons.
func (o *Options) notMade(source result.Source) []result.CheckNotMade {
	ofKey := []certs.Code{certs.KeyMismatch, certs.KeyEncrypted, certs.KeyUnreadable, certs.HandshakeFailed}
	ofCluster := []certs.Code{
		certs.SecretNotFound, certs.SecretNotPermitted, certs.SecretIncomplete, certs.ClocksDiffer,
		certs.LoadBalancerIPUnused, certs.OldClientsBreak,
	}
	ofEndpoint := []certs.Code{certs.EndpointUnreachable, certs.EndpointServesOther}
	var list []result.CheckNotMade
	switch source {
	case result.SourceCluster:
		list = notMadeBecause(`no address is probed: use "pinniped ip-tls status"`, ofEndpoint...)
		if !o.at.IsZero() {
			list = append(list, notMadeBecause("the certificate is checked as of another time (--at)", certs.ClocksDiffer)...)
		}
	case result.SourceEndpoint:
		list = append(notMadeBecause("no cluster was read", ofCluster...),
			notMadeBecause("only the server has the private key", ofKey...)...)
	default:
		list = append(notMadeBecause("no cluster was read", ofCluster...),
			notMadeBecause("no endpoint is used", ofEndpoint...)...)
		if len(o.Key) == 0 {
			list = append(list, notMadeBecause("no private key was given (--key)", ofKey...)...)
		}
		if len(o.Names) == 0 && o.Certificate.ExternalEndpoint == "" {
			list = append(list, notMadeBecause("no --name was given", certs.NameNotCovered)...)
		}
		if o.Certificate.ExternalEndpoint == "" {
			list = append(list, notMadeBecause("no --external-endpoint was given", certs.EndpointInvalid)...)
		}
	}
	slices.SortFunc(list, func(a, b result.CheckNotMade) int { return cmp.Compare(a.Code, b.Code) })
	return list
}
