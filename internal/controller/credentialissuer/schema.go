package credentialissuer

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// statusSchema says which fields of the status the CRD in the cluster declares. The API server refuses to apply any
// other field, so the agent would report nothing at all to a CRD that is older than itself.
type statusSchema int

const (
	schemaFull          statusSchema = iota
	schemaNoRevisions                // before revisions
	schemaTwoStrategies              // before observedGeneration, with the two strategies of Pinniped only
	schemaNoFindings                 // as it was before the status had findings and names of objects
	schemaPinniped                   // Pinniped's own, which has strategies only
)

// retrySchema is how long the agent believes that the CRD is an older one. Then it tries everything again.
const retrySchema = 5 * time.Minute

// reduce leaves out of a status what the CRD does not declare.
func (s statusSchema) reduce(status configv1alpha1.CredentialIssuerStatus) configv1alpha1.CredentialIssuerStatus {
	if s >= schemaNoRevisions {
		if status.Objects != nil {
			objects := *status.Objects
			objects.RevisionsConfigMap = ""
			status.Objects = &objects
		}
		status.Revisions = nil
	}
	if s >= schemaTwoStrategies {
		if status.Objects != nil {
			objects := *status.Objects
			objects.ServiceAccount = ""
			status.Objects = &objects
		}
		status.ObservedGeneration = 0
		status.Strategies = slices.DeleteFunc(
			slices.Clone(status.Strategies),
			func(s configv1alpha1.CredentialIssuerStrategy) bool {
				return s.Type != configv1alpha1.StrategyKubeClusterSigningCertificate &&
					s.Type != configv1alpha1.StrategyImpersonationProxy
			},
		)
	}
	if s >= schemaNoFindings {
		status.Objects = nil
		for i := range status.Strategies {
			status.Strategies[i].Findings = nil
		}
	}
	if s >= schemaPinniped {
		status.ServingCertificate = nil
	}
	return status
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

// learnSchema remembers with which schema the status was written, or needed no writing.
func (r *Reconciler) learnSchema(ctx context.Context, schema statusSchema) {
	if schema != r.schema {
		log.FromContext(ctx).
			Info("Found out which fields the CRD of CredentialIssuer has",
				"revisions", schema < schemaNoRevisions, "observedGeneration", schema < schemaTwoStrategies, "findings", schema < schemaNoFindings,
				"objects", schema < schemaNoFindings, "servingCertificate", schema < schemaPinniped)
	}
	if schema != r.schema || r.knownSchema() != schema {
		r.schema, r.schemaSeen = schema, r.Clock.Now()
	}
}
