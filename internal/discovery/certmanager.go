package discovery

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Certificate holds the fields of a cert-manager Certificate that the CLI needs.
type Certificate struct {
	Name string
	// Secret is the name of the Secret of the certificate, in the namespace of the Certificate.
	Secret string
	// Issuer is the issuer's kind and name, such as "ClusterIssuer my-ca".
	Issuer string
	// RenewalTime is when cert-manager will renew the certificate; zero if unknown.
	RenewalTime time.Time
	// Ready is false if the condition Ready is not true; Reason and Message are from that condition.
	Ready           bool
	Reason, Message string
	// Issuing is true while cert-manager issues the certificate, or has not yet observed the latest spec.
	Issuing bool
	// Failed is the error of cert-manager's last attempt, after which it backs off for an hour or more; empty if it did
	// not fail.
	Failed string
}

// certificateObject is a Certificate as the API returns it.
type certificateObject struct {
	Metadata struct {
		Name       string
		Generation int64
	}
	Spec struct {
		SecretName string
		IssuerRef  struct{ Kind, Name string }
	}
	Status struct {
		RenewalTime     time.Time
		LastFailureTime time.Time
		Conditions      []struct {
			Type, Status, Reason, Message string
			ObservedGeneration            int64
		}
	}
}

func (o *certificateObject) certificate() Certificate {
	found := Certificate{
		Name: o.Metadata.Name, Secret: o.Spec.SecretName, RenewalTime: o.Status.RenewalTime, Ready: true,
	}
	if issuer := o.Spec.IssuerRef; issuer.Name != "" {
		found.Issuer = cmp.Or(issuer.Kind, "Issuer") + " " + issuer.Name
	}
	looked := false // since the last change of the spec
	for _, condition := range o.Status.Conditions {
		current := condition.ObservedGeneration >= o.Metadata.Generation
		looked = looked || current
		switch {
		case condition.Type == "Ready" && condition.Status != "True":
			found.Ready, found.Reason, found.Message = false, condition.Reason, condition.Message
		case condition.Type == "Issuing" && condition.Status == "True":
			found.Issuing = true
		case condition.Type == "Issuing" && current && !o.Status.LastFailureTime.IsZero():
			found.Failed = condition.Reason + ": " + condition.Message
		}
	}
	found.Issuing = found.Issuing || !looked
	return found
}

func certificateOperation(verb, namespace, name string) operation {
	return operation{verb, certManager.WithResource("certificates"), "", namespace, name}
}

// Certificate returns a cert-manager Certificate, or ErrNotFound, also if cert-manager is not installed.
func (c *Client) Certificate(ctx context.Context, namespace, name string) (*Certificate, error) {
	op := certificateOperation("get", namespace, name)
	var object certificateObject
	if err := c.decode(ctx, op, c.request(op), fmt.Sprintf("Certificate %q", name), &object); err != nil {
		return nil, err
	}
	found := object.certificate()
	return &found, nil
}

// Certificates returns the Certificates of a namespace, or ErrNotFound if cert-manager is not installed.
func (c *Client) Certificates(ctx context.Context, namespace string) ([]Certificate, error) {
	op := certificateOperation("list", namespace, "")
	var list struct{ Items []certificateObject }
	what := fmt.Sprintf("the Certificates of namespace %q", namespace)
	if err := c.decode(ctx, op, c.request(op), what, &list); err != nil {
		return nil, err
	}
	all := make([]Certificate, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, list.Items[i].certificate())
	}
	return all, nil
}
