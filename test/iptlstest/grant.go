package iptlstest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// Delegations returns the delegations of a namespace, or all.
func (c *Cluster) Delegations(_ context.Context, namespace string) ([]delegation.Delegation, error) {
	if c.DelegationsErr != nil {
		return nil, c.DelegationsErr
	}
	var found []delegation.Delegation
	for _, one := range c.Delegated {
		if namespace == "" || one.Namespace == namespace {
			found = append(found, one)
		}
	}
	return found, nil
}

// MayReadSecret returns the field MayRead, and records the question.
func (c *Cluster) MayReadSecret(_ context.Context, account, secret types.NamespacedName) (bool, error) {
	c.Reviewed = append(c.Reviewed, account.String()+" "+secret.String())
	return c.MayRead, c.MayReadErr
}

func grantKey(object map[string]any) string {
	metadata := object["metadata"].(map[string]any)
	return fmt.Sprintf("%v %v/%v", object["kind"], metadata["namespace"], metadata["name"])
}

// sameGrant reports whether applied would change nothing in stored; then server-side apply does not write.
func sameGrant(stored, applied map[string]any) bool {
	bare := maps.Clone(stored)
	metadata := maps.Clone(stored["metadata"].(map[string]any))
	delete(metadata, "resourceVersion")
	bare["metadata"] = metadata
	return reflect.DeepEqual(bare, applied)
}

// ApplyGrant stores an object of a delegation.
func (c *Cluster) ApplyGrant(_ context.Context, object map[string]any, opts discovery.ApplyOptions) error {
	c.Options = append(c.Options, opts)
	if c.Grants == nil {
		c.Grants = map[string]map[string]any{}
	}
	if before, ok := c.Grants[grantKey(object)]; !opts.DryRun && (!ok || !sameGrant(before, object)) {
		stored := maps.Clone(object)
		metadata := maps.Clone(object["metadata"].(map[string]any))
		metadata["resourceVersion"] = strconv.Itoa(len(c.Options)) // a new one with each change
		stored["metadata"] = metadata
		c.Grants[grantKey(object)] = stored
	}
	return c.GrantErr
}

// Grant returns a stored object of a delegation.
func (c *Cluster) Grant(_ context.Context, object map[string]any) (map[string]any, error) {
	if found, ok := c.Grants[grantKey(object)]; ok {
		return found, nil
	}
	return nil, discovery.ErrNotFound
}

// DeleteGrant removes an object of a delegation.
func (c *Cluster) DeleteGrant(_ context.Context, found map[string]any, dryRun bool) error {
	if !dryRun {
		delete(c.Grants, grantKey(found))
	}
	return c.GrantErr
}
