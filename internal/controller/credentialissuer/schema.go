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

// statusSchema says which status fields the installed CRD declares. The API server rejects a status with any other
// field, so with a CRD that is older than the agent, nothing would be reported.
type statusSchema int

const (
	schemaFull     statusSchema = iota
	schemaPinniped              // upstream Pinniped's, with two strategies only
)

// retrySchema is how long to assume that the CRD is old before trying the full status again.
const retrySchema = 5 * time.Minute

// reduce removes the fields that the CRD does not declare.
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

// mayBeSchema reports whether an old CRD may be the cause of err. The API server has no specific code for that, so
// other errors match, too; writing less then fails as well.
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

// learnSchema records the schema with which the status was written or was up to date.
func (r *Reconciler) learnSchema(ctx context.Context, schema statusSchema) {
	if schema != r.schema {
		log.FromContext(ctx).Info("Detected the installed CredentialIssuer CRD", "pinniped", schema == schemaPinniped)
	}
	if schema != r.schema || r.knownSchema() != schema {
		r.schema, r.schemaSeen = schema, r.Clock.Now()
	}
}
