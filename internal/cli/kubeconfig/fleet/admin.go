package fleet

import (
	"context"
	"errors"
	"fmt"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Admin is a trusted source of a CA bundle: an administrator's kubeconfig, or flags.
type Admin struct {
	Name string // file and context, for messages
	// Target returns the endpoint and the CA bundle for the cluster's clients.
	Target func(ctx context.Context) (kubeconfig.Target, error)
	// Untried disables the test connection to the endpoint.
	Untried bool
	// Optional means that if this fails, the cluster's endpoint is asked.
	Optional bool
}

// askAdmins reads the CredentialIssuers of all clusters with an administrator's kubeconfig.
func (r *run) askAdmins(ctx context.Context) error {
	asker := asker{
		Policy:   trustbundle.Policy{Now: r.Now, Expected: r.ExpectedCAs},
		deadline: r.ClusterTimeout, retries: r.Retries, sleep: r.Sleep,
	}
	admins := map[*Cluster]Admin{}
	for _, admin := range r.Admins {
		cluster := &Cluster{Server: admin.Name, Source: SourceAdmin, Outcome: ClusterNotAsked}
		admins[cluster] = admin
		r.admins = append(r.admins, cluster)
	}
	r.each(ctx, r.admins, "clusters read with administrators' kubeconfigs", func(ctx context.Context, c *Cluster) {
		started := r.Now()
		err := asker.again(ctx, &c.Tries, func(ctx context.Context) error { return r.askAdmin(ctx, asker, admins[c], c) })
		c.Took = r.Now().Sub(started)
		switch {
		case err == nil:
			c.Outcome = ClusterAsked
		case admins[c].Optional:
			c.Outcome = ClusterUnrelated
			r.Progress.Info("%s has no published CA bundle, so the command asks the endpoint for it: %v", c.Server, err)
		default:
			c.Outcome, c.Err = ClusterFailed, err
		}
	})
	if err := over(ctx); err != nil {
		return err
	}
	if r.Only && len(r.admins) == 1 && r.admins[0].Err != nil {
		return &SourceError{r.admins[0].Err}
	}
	return nil
}

func (r *run) askAdmin(ctx context.Context, asker asker, admin Admin, c *Cluster) error {
	target, err := admin.Target(ctx)
	switch {
	case errors.Is(err, discovery.ErrForbidden), errors.Is(err, discovery.ErrNotInstalled):
		return &refusedError{err}
	case err != nil:
		return err
	}
	if err := asker.Unexpected(target.CABundle); err != nil {
		return &refusedError{&UnexpectedError{URL: target.URL, Err: err}}
	}
	if !admin.Untried {
		try, err := discovery.NewHTTPClient(&clientcmdapi.Cluster{Server: target.URL}, target.CABundle)
		if err != nil {
			return err
		}
		defer try.CloseIdleConnections()
		if err := discovery.Try(ctx, try, target.URL); err != nil {
			return &ConnectError{URL: target.URL, Err: err}
		}
	}
	c.target, c.CABundle = &target, target.CABundle
	return nil
}

// UnexpectedError means that a cluster publishes a certificate that is not in Options.ExpectedCAs.
type UnexpectedError struct {
	URL string
	Err error
}

func (e *UnexpectedError) Error() string {
	return fmt.Sprintf("the CA bundle for %q: %v", e.URL, e.Err)
}
func (e *UnexpectedError) Unwrap() error { return e.Err }

// ConnectError means that connecting to an endpoint with the new CA bundle failed.
type ConnectError struct {
	URL string
	Err error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("connecting to %q with the CA bundle: %v", e.URL, e.Err)
}
func (e *ConnectError) Unwrap() error { return e.Err }
