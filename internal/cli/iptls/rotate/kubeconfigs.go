package rotate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// KubeconfigTrust says whether one kubeconfig will work with the new certificate.
type KubeconfigTrust struct {
	File string `json:"file"`
	// Trusts is true when everything in it that leads to the endpoint verifies the new certificate.
	Trusts bool `json:"trusts"`
	// Problem says why not.
	Problem string `json:"problem,omitempty"`
	// Elsewhere is true when nothing in it leads to the endpoint.
	Elsewhere bool `json:"elsewhere,omitempty"`
}

// kubeconfigs reads the files of --kubeconfigs, and reports whether every kubeconfig that leads to the endpoint
// verifies the new certificate. It is also false when no kubeconfig leads there.
func (o *Options) kubeconfigs(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record,
	chain []byte, result *Result,
) (bool, error) {
	info := plan.ProxyInfo(issuer)
	if info == nil {
		return false, errors.New("no endpoint is advertised, so that kubeconfigs cannot be compared with it")
	}
	endpoint, missing, err := o.Session.Endpoint(ctx, issuer, o.request.Namespace, info.Endpoint)
	if err != nil {
		return false, err
	}
	if missing != "" {
		o.Session.Progress.Warn("%s", missing)
	}
	files, err := o.Session.ReadKubeconfigs(ctx, o.Kubeconfigs)
	if err != nil {
		return false, fmt.Errorf("reading --kubeconfigs: %w", err)
	}
	good, bad := 0, 0
	for _, file := range files {
		one := evaluateKubeconfig(file, endpoint, r, chain, o.Session.Now())
		result.Kubeconfigs = append(result.Kubeconfigs, one)
		switch {
		case one.Elsewhere:
		case one.Trusts:
			good++
		default:
			bad++
			o.Session.Progress.Warn("kubeconfig %q: %s", one.File, one.Problem)
		}
	}
	switch {
	case bad > 0:
		result.waits("%d of %d kubeconfigs to be made anew: they do not verify the new certificate", bad, good+bad)
	case good == 0:
		result.waits("a kubeconfig for %s: there is none in what --kubeconfigs names", info.Endpoint)
	default:
		o.Session.Progress.Done("All %d kubeconfigs for %s verify the new certificate", good, info.Endpoint)
	}
	return bad == 0 && good > 0, nil
}

// evaluateKubeconfig says whether everything in a kubeconfig that leads to the endpoint verifies the new certificate.
func evaluateKubeconfig(file session.Kubeconfig, endpoint kubeconfig.Endpoint, r *rotation.Record, chain []byte,
	now time.Time,
) KubeconfigTrust {
	if file.Err != nil {
		return KubeconfigTrust{File: file.File, Problem: file.Err.Error()}
	}
	one := KubeconfigTrust{File: file.File, Trusts: true}
	places := kubeconfig.Trusts(file.Config, endpoint)
	one.Elsewhere = len(places) == 0
	for _, place := range places {
		problem := ""
		switch {
		case place.Uncertain:
			problem = fmt.Sprintf(
				"goes to %q, which a wildcard of the certificate covers, and may be another endpoint",
				place.Host,
			)
		case place.Insecure:
		case place.Err != nil:
			problem = place.Err.Error()
		case !r.Accepts(place.CABundle, chain, now):
			problem = "trusts " + describeTrust(place.CABundle) + ", which does not verify the new certificate"
		}
		if problem != "" {
			one.Trusts, one.Problem = false, place.Where+" "+problem
			return one
		}
	}
	return one
}

func describeTrust(bundle []byte) string {
	if len(bundle) == 0 {
		return "the system roots"
	}
	return plan.DescribePEM(bundle)
}
