package credentialissuer

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/replicas"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// Replicas shares the state of the replicas. replicas.Registry implements it.
type Replicas interface {
	// Publish sets the report of this replica. It returns at once.
	Publish(report replicas.Report)
	// Live returns the reports of all live replicas, including this one.
	Live() []replicas.Report
}

// maxOtherReplicas is the maximum number of replicas in the status that serve another certificate.
const maxOtherReplicas = 20

// publish shares which certificate this replica serves, and its problem, if any.
func (r *Reconciler) publish(strategy configv1alpha1.CredentialIssuerStrategy) {
	report := replicas.Report{}
	if r.Usage != nil {
		report.Used = r.Usage.report()
	}
	if inService := r.served(); inService != nil {
		report.SHA256 = inService.SHA256()
	}
	if strategy.Status != configv1alpha1.StrategySuccess {
		report.Problem = strategy.Message
	}
	r.Replicas.Publish(report)
}

// served returns the certificate that clients of this replica get, or nil.
func (r *Reconciler) served() *serving.Certificate {
	if !r.Proxy.Serving() {
		return nil
	}
	return r.Holder.Current()
}

// servedStatus returns which certificate this replica serves and which replicas serve it, or nil if it serves none.
// have is the current status.
func servedStatus(
	have *configv1alpha1.ServingCertificateStatus,
	inService *serving.Certificate,
	namespace string,
	live []replicas.Report,
	now metav1.Time,
) *configv1alpha1.ServingCertificateStatus {
	if inService == nil {
		return nil
	}
	leaf := inService.Certificate.Leaf
	status := &configv1alpha1.ServingCertificateStatus{
		Source:      configv1alpha1.ServingCertificateSecret,
		SecretName:  secretName(inService.Secret, namespace),
		SHA256:      inService.SHA256(),
		NotBefore:   metav1.NewTime(leaf.NotBefore),
		NotAfter:    metav1.NewTime(leaf.NotAfter),
		DNSNames:    leaf.DNSNames,
		ServedSince: now,
	}
	if inService.Source == serving.SourceGenerated {
		status.Source = configv1alpha1.ServingCertificateGenerated
	}
	for _, ip := range leaf.IPAddresses {
		status.IPAddresses = append(status.IPAddresses, ip.String())
	}
	if have != nil && sameServed(have, status) {
		status.ServedSince = have.ServedSince // even if the leader has changed
	}
	for _, replica := range live {
		status.Replicas++
		if replica.SHA256 == status.SHA256 {
			status.ServingReplicas++
		} else if len(status.OtherReplicas) < maxOtherReplicas {
			status.OtherReplicas = append(status.OtherReplicas, other(replica))
		}
	}
	return status
}

// maxWaitsFor is the maximum number of revisions in the status of a transition.
const maxWaitsFor = 20

// transitionStatus describes the waiting certificate; nil if there is none. have is the current status.
func transitionStatus(
	have *configv1alpha1.TransitionStatus, waiting *serving.Waiting, namespace string, now metav1.Time,
) *configv1alpha1.TransitionStatus {
	if waiting == nil {
		return nil
	}
	next := waiting.Certificate
	status := &configv1alpha1.TransitionStatus{
		Phase: configv1alpha1.TransitionPrepared, Since: now, SHA256: next.SHA256(), Until: apiTime(waiting.Until),
	}
	if next.Source == serving.SourceExternal {
		status.SecretName = secretName(next.Secret, namespace)
	}
	if have != nil && have.SHA256 == status.SHA256 && have.SecretName == status.SecretName {
		status.Since = have.Since
	}
	for _, id := range waiting.Broken.Revisions() {
		if len(status.WaitsFor) < maxWaitsFor {
			status.WaitsFor = append(status.WaitsFor, id)
		}
	}
	return status
}

// secretName returns the name of a Secret for the status: NAME in the agent's namespace, else NAMESPACE/NAME.
func secretName(name types.NamespacedName, namespace string) string {
	if name.Namespace == namespace {
		return name.Name
	}
	return name.String()
}

func sameServed(a, b *configv1alpha1.ServingCertificateStatus) bool {
	return a.SHA256 == b.SHA256 && a.Source == b.Source && a.SecretName == b.SecretName
}

func other(replica replicas.Report) configv1alpha1.OtherReplica {
	message := replica.Problem
	switch {
	case message != "":
	case replica.SHA256 == "":
		message = "it serves no certificate yet"
	default:
		message = "it does not serve this certificate yet"
	}
	return configv1alpha1.OtherReplica{
		Name:    replica.Name,
		SHA256:  replica.SHA256,
		Message: strings.ToValidUTF8(message, ""),
	}
}
