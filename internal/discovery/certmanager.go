package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Certificate holds the fields of a cert-manager Certificate that the CLI shows.
type Certificate struct {
	// Issuer names the issuer with its kind: "ClusterIssuer my-ca".
	Issuer string
	// RenewalTime is when cert-manager will renew it; zero when it does not say.
	RenewalTime time.Time
	// Ready is false when the Certificate's condition Ready is not true. Message is the message of that condition.
	Ready   bool
	Message string
}

// Certificate reads a Certificate of cert-manager. It returns ErrNotFound when there is none, and when cert-manager
// is not installed.
func (c *Client) Certificate(ctx context.Context, namespace, name string) (*Certificate, error) {
	op := operation{verb: "get", resource: certManager.WithResource("certificates"), namespace: namespace, name: name}
	raw, err := c.request(op).Do(ctx).Raw()
	if err != nil {
		return nil, c.explain(ctx, op, err)
	}
	var object struct {
		Spec struct {
			IssuerRef struct{ Kind, Name string }
		}
		Status struct {
			RenewalTime time.Time
			Conditions  []struct{ Type, Status, Message string }
		}
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("decoding Certificate %q: %w", name, err)
	}
	found := &Certificate{RenewalTime: object.Status.RenewalTime, Ready: true}
	if issuer := object.Spec.IssuerRef; issuer.Name != "" {
		if issuer.Kind == "" {
			issuer.Kind = "Issuer"
		}
		found.Issuer = issuer.Kind + " " + issuer.Name
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == "Ready" && condition.Status != "True" {
			found.Ready, found.Message = false, condition.Message
		}
	}
	return found, nil
}
