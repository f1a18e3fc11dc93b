package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// clusterPatience is how long the cluster may take before users' state is shown without it: within three seconds.
const clusterPatience = 2200 * time.Millisecond

// probeEarly probes the endpoint while the cluster is slow to respond. If the proxy presents its certificate but
// responds to no request, the API server is down for users too, and probeEarly sends the result.
func (o *Options) probeEarly(ctx context.Context, early chan<- *snapshot) {
	enough := time.After(clusterPatience)
	select {
	case <-ctx.Done():
		return
	case <-time.After(200 * time.Millisecond): // a cluster that responds by then needs no probe
	}
	l := o.probeEndpointOnly(ctx)
	if l == nil || ctx.Err() != nil || len(l.probed) == 0 ||
		slices.ContainsFunc(l.probed, func(one session.Met) bool { return !one.Silent() }) {
		return
	}
	select {
	case <-ctx.Done():
	case <-enough:
		early <- l
	}
}

// probeEndpointOnly probes the endpoint of --endpoint or of the kubeconfigs, without the cluster; nil if there is none.
func (o *Options) probeEndpointOnly(ctx context.Context) *snapshot {
	url, bundle, known := o.knownEndpoint()
	at, err := plan.ParseEndpoint(url)
	if err != nil {
		return nil
	}
	l := &snapshot{Status: &result.Status{At: o.Session.Now().UTC()}, issuer: &configv1alpha1.CredentialIssuer{}}
	l.bundle, l.view.At = bundle, at
	o.probeEndpoint(ctx, l)
	l.certificate()
	l.evaluateKubeconfigs(o.kubeconfigs, kubeconfig.Endpoint{URL: "https://" + at.String()})
	l.judgeClients()
	l.Users, _ = l.usersAtEndpoint()
	if !known && l.Users.Code == string(certs.BundleDoesNotVerify) {
		l.Users = usersNotKnown("no CA bundle is known for the certificate at "+at.String()+", and the system roots do not "+
			"verify it; pass the CA bundle with --ca-bundle, or kubeconfigs for this endpoint with --kubeconfigs",
			"pinniped ip-tls status --endpoint "+at.String()+" --kubeconfigs ~/.kube")
	}
	return l
}

// gatherAway returns the status of the endpoint alone, with an error. l is the result of an earlier probe, or nil.
func (o *Options) gatherAway(ctx context.Context, cause error, l *snapshot) (*result.Status, error) {
	if l == nil {
		l = o.probeEndpointOnly(ctx)
	}
	switch {
	case l != nil:
	case errors.Is(cause, discovery.ErrPluginFailed):
		return nil, cause // the plugin's error explains more
	default:
		users := usersNotKnown("the cluster does not respond, and no endpoint is known",
			"pinniped ip-tls status --endpoint HOST:PORT")
		return &result.Status{At: o.Session.Now().UTC(), Users: users}, ui.WithHint(cause,
			"to check the endpoint anyway, pass it as --endpoint, or users' kubeconfigs as --kubeconfigs")
	}
	l.notKnown("what is configured, and what the agent reports: %s", cause)
	current, err := o.Current(o.Session.ClusterFlags)
	if err != nil || !kubeconfig.SameEndpoint(current.Source.Cluster.Server, l.view.At.URL) {
		if l.Users.State == result.UsersNotAffected && slices.ContainsFunc(l.probed,
			func(one session.Met) bool { return one.Status == http.StatusUnauthorized }) { // only the proxy has responded
			l.Users.State, l.Users.Message = result.UsersNotKnown, "not known: the certificate in service is good, but the "+
				"API server does not respond. This check cannot tell whether the proxy reaches the API server, because the "+
				"proxy does not forward unauthenticated requests"
		}
		return l.Status, fmt.Errorf("the cluster does not respond; only the endpoint was checked: %w", cause)
	}
	return l.Status, ui.WithHint(fmt.Errorf("the kubeconfig uses the impersonation proxy, so only the endpoint was "+
		"checked: %w", cause), "to see and fix the rest, pass a --kubeconfig that bypasses the proxy, such as the one from "+
		"the cluster's installer or cloud provider")
}

// knownEndpoint returns the endpoint without the cluster: that of --endpoint, of a credential plugin in a kubeconfig,
// or the server in a kubeconfig of --kubeconfigs. The CA bundle is from --ca-bundle, or from the same kubeconfig; it is
// empty for the system roots. known is false if the CA bundle is unknown.
func (o *Options) knownEndpoint() (url string, bundle []byte, known bool) {
	if o.Endpoint != "" {
		host, port, _ := certs.ParseEndpoint(o.Endpoint) // Validate has accepted it
		url = "https://" + net.JoinHostPort(host, cmp.Or(port, "443"))
		if len(o.bundle) > 0 {
			return url, o.bundle, true
		}
	}
	for _, kind := range []string{"user", "cluster"} {
		for _, one := range o.kubeconfigs {
			if one.Err != nil || kind == "cluster" && len(o.KubeconfigsFrom) == 0 && o.Endpoint == "" {
				continue // the administrator's server is the API server, which does not respond
			}
			for _, place := range kubeconfig.AllTrusts(one.Config) {
				if place.Kind == kind && place.Err == nil && (url == "" || kubeconfig.SameEndpoint(place.Server, url)) {
					return cmp.Or(url, place.Server), place.CABundle, true
				}
			}
		}
	}
	return url, nil, false
}
