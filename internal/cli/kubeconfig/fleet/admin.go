package fleet

import (
	"context"
	"errors"
	"fmt"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/advertised"
	"github.com/pinniped-toolkit/pinniped/internal/cli/endpoint"
	"github.com/pinniped-toolkit/pinniped/internal/cli/handed"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// Admin is a cluster that is asked with an administrator's kubeconfig.
type Admin struct {
	Name string // the file and the context, for people
	// Connect loads the kubeconfig. It contacts nothing.
	Connect func() (advertised.Discoverer, error)
}

// askAdmins reads the CredentialIssuers of all clusters for which there is an administrator's kubeconfig.
func (r *run) askAdmins(ctx context.Context) {
	asker := asker{
		Policy:   handed.Policy{Now: r.Now, Expected: r.ExpectedCAs},
		deadline: r.ClusterTimeout, retries: r.Retries, sleep: r.Sleep,
	}
	admins := map[*Cluster]Admin{}
	for _, admin := range r.Admins {
		cluster := &Cluster{Server: admin.Name, Source: SourceAdmin, Outcome: ClusterNotAsked}
		admins[cluster] = admin
		r.admins = append(r.admins, cluster)
	}
	r.each(ctx, r.admins, "clusters asked with administrators' kubeconfigs", func(ctx context.Context, c *Cluster) {
		started := r.Now()
		err := asker.again(ctx, &c.Tries, func(ctx context.Context) error { return r.askAdmin(ctx, asker, admins[c], c) })
		c.Took = r.Now().Sub(started)
		if c.Outcome, c.Err = ClusterAsked, err; err != nil {
			c.Outcome = ClusterFailed
		}
	})
}

func (r *run) askAdmin(ctx context.Context, asker asker, admin Admin, c *Cluster) error {
	client, err := admin.Connect()
	if err != nil {
		return &refusedError{err}
	}
	target, warnings, err := advertised.Target(ctx, client, r.CredentialIssuer, r.Resolve)
	for _, warning := range warnings {
		r.Progress.Warn("%s: %s", admin.Name, warning)
	}
	switch {
	case errors.Is(err, discovery.ErrForbidden), errors.Is(err, discovery.ErrNotInstalled):
		return &refusedError{err}
	case err != nil:
		return err
	}
	if err := asker.Unexpected(target.CABundle); err != nil {
		return &refusedError{err}
	}
	try, err := endpoint.NewClient(&clientcmdapi.Cluster{Server: target.URL}, target.CABundle)
	if err != nil {
		return err
	}
	defer try.CloseIdleConnections()
	if err := endpoint.Try(ctx, try, target.URL); err != nil {
		return fmt.Errorf("connecting to %q with the CA bundle that it advertises: %w", target.URL, err)
	}
	c.target, c.CABundle = &target, target.CABundle
	return nil
}
