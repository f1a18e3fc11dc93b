package iptls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
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

// gate says whether it is time for step 3, and fills in what is waited for.
func (o *RotateOptions) gate(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation, result *RotateResult) (bool, error) {
	chain, err := o.newChain(ctx, issuer, r)
	if err != nil {
		return false, err
	}
	if r.To != nil && verifies([]byte(r.OldCA), chain, o.Now()) {
		o.progress.Info("Kubeconfigs with the old CA verify the new certificate as well, so none has to be made anew")
		return true, nil
	}
	if o.Continue {
		return true, nil
	}
	if o.After == 0 && len(o.Kubeconfigs) == 0 && len(o.reports) == 0 {
		result.waits("kubeconfigs to be made anew: go on with --continue when they are, or let --after DURATION, --kubeconfigs PATH or --report FILE tell")
		return false, nil
	}
	due := true
	if at := r.Advertised.Add(o.After); o.After > 0 && o.Now().Before(at) {
		due, result.DueAt = false, &at
		result.waits("%s to have passed since step 1: that is at %s, in %s", o.After, at.Format(time.RFC3339), at.Sub(o.Now()).Round(time.Second))
	}
	if len(o.Kubeconfigs) > 0 {
		trusted, err := o.kubeconfigs(ctx, issuer, r, chain, result)
		if err != nil {
			return false, err
		}
		due = due && trusted
	}
	if len(o.reports) > 0 {
		reported, err := o.reported(issuer, r, result)
		if err != nil {
			return false, err
		}
		due = due && reported
	}
	return due, nil
}

// newChain returns the new certificate with its intermediates; nil when the agent makes it only then.
func (o *RotateOptions) newChain(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation) ([]byte, error) {
	if r.To == nil {
		return nil, nil
	}
	secret, err := permittedSecret(ctx, o.cluster, issuer, o.request.namespace, r.To.SecretName)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		name := request{namespace: o.request.namespace, secret: r.To.SecretName}.secretName()
		return nil, ui.WithExitCode(fmt.Errorf("%s: there is no Secret %q in namespace %q any more", certs.SecretNotFound, name.Name, name.Namespace), ui.ExitRefused)
	}
	return secret.Data[corev1.TLSCertKey], nil
}

// kubeconfigs says whether every kubeconfig that leads to the endpoint verifies the new certificate, and at least one does.
func (o *RotateOptions) kubeconfigs(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation, chain []byte, result *RotateResult) (bool, error) {
	info := proxyInfo(issuer)
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
			o.progress.Warn("kubeconfig %q: %s", one.File, one.Problem)
		}
	}
	switch {
	case bad > 0:
		result.waits("%d of %d kubeconfigs to be made anew: they do not verify the new certificate", bad, good+bad)
	case good == 0:
		result.waits("a kubeconfig for %s: there is none in what --kubeconfigs names", info.Endpoint)
	default:
		o.progress.Done("All %d kubeconfigs for %s verify the new certificate", good, info.Endpoint)
	}
	return bad == 0 && good > 0, nil
}

// trusts judges one kubeconfig; nil for a file that is none.
func (o *RotateOptions) trusts(file kubeconfig.Found, endpoint string, r *rotation, chain []byte) (*KubeconfigTrust, error) {
	if file.Err != nil {
		return nil, ui.Usage(fmt.Errorf("reading --kubeconfigs: %w", file.Err))
	}
	config, err := readKubeconfig(file.Path)
	switch {
	case err == nil:
	case file.Named:
		return nil, ui.Usage(fmt.Errorf("reading kubeconfig %q: %w", file.Path, err))
	default:
		return nil, nil // it is something else
	}
	return judgeKubeconfig(config, file.Path, endpoint, r, chain, o.Now()), nil
}

func judgeKubeconfig(config *clientcmdapi.Config, path, endpoint string, r *rotation, chain []byte, now time.Time) *KubeconfigTrust {
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
		case !r.accepts(place.CABundle, chain, now):
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
	return describePEM(bundle)
}

// accepts says whether clients with a CA bundle will verify the new certificate. Where the agent makes that only later,
// its CA must be in the bundle.
func (r *rotation) accepts(bundle, chain []byte, now time.Time) bool {
	if r.To != nil {
		return verifies(bundle, chain, now)
	}
	members, _ := certs.ParseBundle(bundle)
	wanted, _ := certs.ParseBundle([]byte(r.NewCA))
	return len(wanted) > 0 && slices.ContainsFunc(members, wanted[0].Equal)
}
