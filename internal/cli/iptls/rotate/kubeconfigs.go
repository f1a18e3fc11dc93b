package rotate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// KubeconfigTrust says whether one kubeconfig goes on working after a rotation.
type KubeconfigTrust struct {
	File string `json:"file"`
	// Trusts is true when everything in it that leads to the endpoint verifies the new certificate.
	Trusts bool `json:"trusts"`
	// Problem says why not.
	Problem string `json:"problem,omitempty"`
	// Elsewhere is true when nothing in it leads to the endpoint.
	Elsewhere bool `json:"elsewhere,omitempty"`
}

// kubeconfigs says whether every kubeconfig that leads to the endpoint verifies the new certificate, and at least one does.
func (o *Options) kubeconfigs(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record, chain []byte, result *Result) (bool, error) {
	info := plan.ProxyInfo(issuer)
	if info == nil {
		return false, errors.New("no endpoint is advertised, so that kubeconfigs cannot be compared with it")
	}
	files, err := kubeconfig.Find(ctx, o.Kubeconfigs)
	if err != nil {
		return false, err
	}
	good, bad := 0, 0
	for _, file := range files {
		one, err := o.trusts(file, info.Endpoint, r, chain)
		if err != nil {
			return false, err
		}
		if one == nil {
			continue
		}
		result.Kubeconfigs = append(result.Kubeconfigs, *one)
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

// trusts judges one kubeconfig; nil for a file that is none.
func (o *Options) trusts(file kubeconfig.Found, endpoint string, r *rotation.Record, chain []byte) (*KubeconfigTrust, error) {
	if file.Err != nil {
		return nil, ui.Usage(fmt.Errorf("reading --kubeconfigs: %w", file.Err))
	}
	config, err := session.ReadKubeconfig(file.Path)
	switch {
	case err == nil:
	case file.Named:
		return nil, ui.Usage(fmt.Errorf("reading kubeconfig %q: %w", file.Path, err))
	default:
		return nil, nil // it is something else
	}
	return judgeKubeconfig(config, file.Path, endpoint, r, chain, o.Session.Now()), nil
}

func judgeKubeconfig(config *clientcmdapi.Config, path, endpoint string, r *rotation.Record, chain []byte, now time.Time) *KubeconfigTrust {
	_ = clientcmd.ResolveLocalPaths(config) // a path that stays as it is cannot be read, which is said
	one := &KubeconfigTrust{File: path, Trusts: true}
	places := kubeconfig.Trusts(config, endpoint)
	one.Elsewhere = len(places) == 0
	for _, place := range places {
		problem := ""
		switch {
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
