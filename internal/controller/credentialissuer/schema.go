package credentialissuer

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// statusSchema says which fields of the status the CRD in the cluster declares. The API server refuses to apply any
// other field, so the agent would report nothing at all to a CRD that is older than itself.
type statusSchema int

const (
	schemaFull     statusSchema = iota
	schemaPinniped              // Pinniped's own, which has two strategies only
)

// retrySchema is how long the agent believes that the CRD is an older one. Then it tries everything again.
const retrySchema = 5 * time.Minute

// reduce leaves out of a status what the CRD does not declare.
func (s statusSchema) reduce(status configv1alpha1.CredentialIssuerStatus) configv1alpha1.CredentialIssuerStatus {
	if s == schemaFull {
		return status
	}
	var reduced configv1alpha1.CredentialIssuerStatus
	for _, strategy := range status.Strategies {
		if strategy.Type != configv1alpha1.StrategyServiceAccountToken {
			strategy.Findings = nil
			reduced.Strategies = append(reduced.Strategies, strategy)
		}
	}
	return reduced
}

// mayBeSchema says whether err can come from a CRD that is older than the agent. The API server has no code of its
// own for that, so this is true of other errors, too: then writing less fails as well.
func mayBeSchema(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusInternalServerError, http.StatusBadRequest, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// knownSchema returns the schema to try first.
func (r *Reconciler) knownSchema() statusSchema {
	if r.Clock.Since(r.schemaSeen) > retrySchema {
		return schemaFull
	}
	return r.schema
}

// learnSchema keeps with which schema the status was written, or needed no writing.
func (r *Reconciler) learnSchema(ctx context.Context, schema statusSchema) {
	if schema != r.schema {
		log.FromContext(ctx).Info("Found which CRD of CredentialIssuer is installed", "pinniped", schema == schemaPinniped)
	}
	if schema != r.schema || r.knownSchema() != schema {
		r.schema, r.schemaSeen = schema, r.Clock.Now()
	}
}
