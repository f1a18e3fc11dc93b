package credentialissuer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// FieldManager is the field manager of everything that the agent applies.
const FieldManager = "pinniped-agent"

const proxyServicePort = 443

// serviceName returns the name of the Service that a spec asks for, or "" for none.
func (r *Reconciler) serviceName(spec configv1alpha1.ImpersonationProxySpec) string {
	switch spec.Service.Type {
	case configv1alpha1.ServiceTypeLoadBalancer:
		return r.Names.LoadBalancerService
	case configv1alpha1.ServiceTypeClusterIP:
		return r.Names.ClusterIPService
	case configv1alpha1.ServiceTypeNone:
	}
	return ""
}

// desiredService returns the fields that the agent applies to the Service. Others may set further fields. present is
// the current Service, or nil.
func (r *Reconciler) desiredService(
	spec configv1alpha1.ImpersonationProxySpec,
	present *corev1.Service,
) *corev1ac.ServiceApplyConfiguration {
	serviceSpec := corev1ac.ServiceSpec().
		WithType(corev1.ServiceType(spec.Service.Type)).
		WithSelector(map[string]string{"app": r.AppLabel}).
		WithPorts(corev1ac.ServicePort().
			WithPort(proxyServicePort).
			WithProtocol(corev1.ProtocolTCP).
			WithTargetPort(intstr.FromInt32(r.ProxyPort)))
	if policy := spec.Service.IPFamilyPolicy; policy != "" {
		serviceSpec = serviceSpec.WithIPFamilyPolicy(corev1.IPFamilyPolicy(policy))
	}
	if spec.Service.Type == configv1alpha1.ServiceTypeLoadBalancer {
		if spec.Service.LoadBalancerIP != "" {
			serviceSpec = serviceSpec.WithLoadBalancerIP(spec.Service.LoadBalancerIP)
		}
		serviceSpec = serviceSpec.WithLoadBalancerSourceRanges(spec.Service.LoadBalancerSourceRanges...)
		serviceSpec.LoadBalancerClass = classToApply(spec.Service.LoadBalancerClass, present)
	}
	return corev1ac.Service(r.serviceName(spec), r.Namespace).
		WithLabels(r.Labels).
		WithAnnotations(withKeys(spec.Service.Annotations, r.Labels)).
		WithSpec(serviceSpec)
}

const (
	annotationKeys = "credentialissuer.pinniped.dev/annotation-keys"
	labelKeys      = "credentialissuer.pinniped.dev/label-keys"
)

// withKeys adds annotations that list the agent's annotations and labels. Server-side apply does not need them;
// upstream Pinniped's agent does, to remove obsolete ones if it ever manages this Service again.
func withKeys(annotations, labels map[string]string) map[string]string {
	all := maps.Clone(annotations)
	if all == nil {
		all = map[string]string{}
	}
	for name, of := range map[string]map[string]string{annotationKeys: annotations, labelKeys: labels} {
		if len(of) > 0 {
			keys, _ := json.Marshal(slices.Sorted(maps.Keys(of))) // strings can always be marshaled
			all[name] = string(keys)
		}
	}
	return all
}

// ownService is a Service of the agent; nil if it does not exist.
type ownService struct {
	service *corev1.Service
	err     error
}

// serviceChanges are the changes to the agent's Services.
type serviceChanges struct {
	apply   *corev1ac.ServiceApplyConfiguration // nil if up to date
	release *corev1.Service                     // to be removed from its Deployment, or nil
	remove  []*corev1.Service                   // obsolete
}

func (c serviceChanges) any() bool { return c.apply != nil || c.release != nil || len(c.remove) > 0 }

// reconcileServices applies the Service that spec asks for and deletes the other. It returns the current Service, or
// nil if there is none. Only the leader changes anything.
func (r *Reconciler) reconcileServices(
	ctx context.Context,
	spec configv1alpha1.ImpersonationProxySpec,
	wanted bool,
) (*corev1.Service, error) {
	keep := ""
	if wanted {
		keep = r.serviceName(spec)
	}
	leads := r.IsLeader()
	seen := map[string]ownService{}
	var problems error
	for _, name := range []string{r.Names.LoadBalancerService, r.Names.ClusterIPService} {
		service, found, err := r.Services.Get(ctx, r.local(name))
		if err != nil || !found {
			service = nil
		}
		seen[name] = ownService{service, err}
		switch {
		case err == nil:
		case name == keep:
			problems = errors.Join(problems, coded(configv1alpha1.CodeServiceNotApplied, err))
		case leads:
			problems = errors.Join(problems, err)
		}
	}
	kept := seen[keep].service // nil if none is wanted
	if keep == "" || !leads {
		r.appliedService = nil // by the next time, another replica may have applied something else
	}
	if leads {
		changes := r.decideServices(spec, keep, seen)
		if changes.any() && r.decidedOn != nil {
			current, err := r.current(ctx)
			if !current || err != nil {
				return kept, errors.Join(problems, coded(configv1alpha1.CodeServiceNotApplied, err))
			}
		}
		problems = errors.Join(problems, r.changeServices(ctx, spec, kept, changes))
	}
	return kept, problems
}

// decideServices returns the changes so that the Service called keep is as spec asks for, and no other one exists. keep
// is empty if none is wanted. A Service that could not be read stays unchanged.
func (r *Reconciler) decideServices(
	spec configv1alpha1.ImpersonationProxySpec, keep string, seen map[string]ownService,
) serviceChanges {
	var changes serviceChanges
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if old := seen[name].service; name != keep && old != nil && old.DeletionTimestamp == nil {
			changes.remove = append(changes.remove, old)
		}
	}
	kept := seen[keep]
	if keep == "" || kept.err != nil {
		return changes
	}
	desired := r.desiredService(spec, kept.service)
	if kept.service == nil || !equality.Semantic.DeepEqual(desired, r.appliedService) ||
		!serviceHas(kept.service, desired) ||
		hasMore(kept.service, desired) && kept.service.ResourceVersion != r.judgedService {
		changes.apply = desired
	}
	if kept.service != nil && len(issuedcert.WithoutDeployments(kept.service.OwnerReferences)) <
		len(kept.service.OwnerReferences) {
		changes.release = kept.service
	}
	return changes
}

// changeServices performs the changes. present is the Service that is kept, or nil. It continues after a failed
// deletion, but releases a Service only after it was applied.
func (r *Reconciler) changeServices(
	ctx context.Context, spec configv1alpha1.ImpersonationProxySpec, present *corev1.Service, changes serviceChanges,
) error {
	var problems error
	for _, old := range changes.remove {
		problems = errors.Join(problems, r.remove(ctx, "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: old.Namespace, Name: old.Name, UID: old.UID, ResourceVersion: old.ResourceVersion,
		}}))
	}
	if changes.apply != nil {
		name := r.local(*changes.apply.Name)
		if present != nil {
			if err := r.takeOver(ctx, name); err != nil {
				return errors.Join(problems, coded(configv1alpha1.CodeServiceNotApplied, err))
			}
		}
		if err := r.Client.Apply(ctx, changes.apply, client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
			return errors.Join(problems,
				coded(configv1alpha1.CodeServiceNotApplied, fmt.Errorf("applying Service %s: %w", name, err)))
		}
		// Apply has overwritten its argument with the response, which is not comparable with the next desired Service.
		r.appliedService = r.desiredService(spec, present)
		if present != nil {
			r.judgedService = present.ResourceVersion
		}
		log.FromContext(ctx).Info("Applied Service", "service", name, "type", spec.Service.Type)
	}
	if changes.release != nil {
		problems = errors.Join(problems, r.releaseService(ctx, changes.release))
	}
	return problems
}

// pinnipedManager is the field manager of upstream Pinniped's agent, which uses updates.
const pinnipedManager = "pinniped-concierge"

// takeOver transfers fields that upstream Pinniped's agent owns to this agent's field manager. Otherwise obsolete
// fields, such as source ranges, would stay: server-side apply removes only fields that its manager owns.
func (r *Reconciler) takeOver(ctx context.Context, name types.NamespacedName) error {
	found := &corev1.ServiceList{} // uncached for managed fields; RBAC permits only list
	if err := r.Live.List(ctx, found, client.InNamespace(name.Namespace),
		client.MatchingFields{metav1.ObjectNameField: name.Name}); err != nil {
		return fmt.Errorf("reading Service %s: %w", name, err)
	}
	if len(found.Items) == 0 {
		return nil
	}
	live := &found.Items[0]
	byPinniped := func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == pinnipedManager && entry.Operation == metav1.ManagedFieldsOperationUpdate &&
			entry.Subresource == ""
	}
	if !slices.ContainsFunc(live.ManagedFields, byPinniped) {
		return nil
	}
	owned := live.DeepCopy()
	if err := csaupgrade.UpgradeManagedFields(owned, sets.New(pinnipedManager), FieldManager); err != nil {
		return fmt.Errorf("taking over the fields of Service %s: %w", name, err)
	}
	unlessReplaced := client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, owned, unlessReplaced, client.FieldOwner(FieldManager)); err != nil {
		return fmt.Errorf("taking over the fields of Service %s: %w", name, err)
	}
	log.FromContext(ctx).Info("Took over Service fields that upstream Pinniped's agent owned", "service", name)
	return nil
}

// releaseService removes a Deployment from the owners of a Service: see issuedcert.WithoutDeployments.
func (r *Reconciler) releaseService(ctx context.Context, service *corev1.Service) error {
	released := service.DeepCopy()
	released.OwnerReferences = issuedcert.WithoutDeployments(service.OwnerReferences)
	unlessReplaced := client.MergeFromWithOptions(service, client.MergeFromWithOptimisticLock{})
	err := r.Client.Patch(ctx, released, unlessReplaced, client.FieldOwner(FieldManager))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the watch triggers a reconcile
	}
	if err != nil {
		return coded(configv1alpha1.CodeServiceNotApplied,
			fmt.Errorf("removing the owner reference of Service %s: %w", client.ObjectKeyFromObject(service), err))
	}
	log.FromContext(ctx).
		Info("Removed a Deployment from a Service's owners", "service", client.ObjectKeyFromObject(service))
	return nil
}

// classToApply returns the loadBalancerClass to apply: wanted for a new Service; for an existing one its current class,
// because Kubernetes rejects a change together with everything else that is applied.
func classToApply(wanted string, present *corev1.Service) *string {
	if present != nil && present.Spec.Type == corev1.ServiceTypeLoadBalancer {
		return present.Spec.LoadBalancerClass
	}
	if wanted == "" {
		return nil
	}
	return &wanted
}

// classProblem returns a finding if the Service has another loadBalancerClass than the spec asks for, else nil. The
// agent does not recreate the Service by itself, because its address, which clients use, would change. A class that the
// cluster chose because the spec names none is no problem.
func classProblem(spec configv1alpha1.ImpersonationProxySpec, service *corev1.Service) *configv1alpha1.StrategyFinding {
	wanted := spec.Service.LoadBalancerClass
	if wanted == "" || service == nil || spec.Service.Type != configv1alpha1.ServiceTypeLoadBalancer ||
		service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	has := ptr.Deref(service.Spec.LoadBalancerClass, "")
	if has == wanted {
		return nil
	}
	return &configv1alpha1.StrategyFinding{
		Code:     configv1alpha1.CodeServiceClassDiffers,
		Severity: configv1alpha1.FindingWarning,
		Message: fmt.Sprintf(
			"Service %q has loadBalancerClass %q instead of %q, and this field is immutable (delete the Service: "+
				"the agent recreates it with "+
				"the new class, perhaps at another address)",
			service.Namespace+"/"+service.Name,
			has,
			wanted,
		),
	}
}

// hasMore reports whether a Service has fields that are not desired and may come from upstream Pinniped's agent: if it
// was still running during takeOver, it has written them again. Fields of other managers stay when desired is applied.
func hasMore(service *corev1.Service, desired *corev1ac.ServiceApplyConfiguration) bool {
	return desired.Spec.LoadBalancerIP == nil && service.Spec.LoadBalancerIP != "" ||
		len(desired.Spec.LoadBalancerSourceRanges) < len(service.Spec.LoadBalancerSourceRanges) ||
		service.Annotations[annotationKeys] != desired.Annotations[annotationKeys]
}

// serviceHas reports whether the Service has all fields that the agent applies.
func serviceHas(service *corev1.Service, desired *corev1ac.ServiceApplyConfiguration) bool {
	spec := desired.Spec
	return service.Spec.Type == *spec.Type &&
		(spec.LoadBalancerIP == nil || service.Spec.LoadBalancerIP == *spec.LoadBalancerIP) &&
		(len(spec.LoadBalancerSourceRanges) == 0 || slices.Equal(
			service.Spec.LoadBalancerSourceRanges, spec.LoadBalancerSourceRanges,
		)) &&
		(spec.IPFamilyPolicy == nil || ptr.Deref(service.Spec.IPFamilyPolicy, "") == *spec.IPFamilyPolicy) &&
		maps.Equal(service.Spec.Selector, spec.Selector) &&
		containsAll(service.Labels, desired.Labels) &&
		containsAll(service.Annotations, desired.Annotations) &&
		len(service.Spec.Ports) > 0 && service.Spec.Ports[0].Port == *spec.Ports[0].Port &&
		service.Spec.Ports[0].TargetPort == *spec.Ports[0].TargetPort
}

func containsAll(have, want map[string]string) bool {
	for key, value := range want {
		if got, ok := have[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// current reports whether this replica still leads and the CredentialIssuer still has the spec of the decision. It asks
// the API server, because a watch may lag, also on a replica that does not know yet that it lost the lead. A change
// triggers a reconcile.
func (r *Reconciler) current(ctx context.Context) (bool, error) {
	if !r.IsLeader() || r.decidedOn == nil {
		return false, nil
	}
	live := &configv1alpha1.CredentialIssuer{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(r.decidedOn), live)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the CredentialIssuer again: %w", err)
	}
	return live.UID == r.decidedOn.UID && live.Generation == r.decidedOn.Generation && r.IsLeader(), nil
}

// remove deletes exactly the object that was read, if the spec of the decision is still current. An object that was
// replaced or changed since stays, and triggers a reconcile.
func (r *Reconciler) remove(ctx context.Context, kind string, object client.Object) error {
	if current, err := r.current(ctx); !current || err != nil {
		return coded(configv1alpha1.CodeCleanupFailed, err)
	}
	uid, version := object.GetUID(), object.GetResourceVersion()
	err := r.Client.Delete(ctx, object, client.Preconditions{UID: &uid, ResourceVersion: &version})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return coded(
			configv1alpha1.CodeCleanupFailed,
			fmt.Errorf("removing %s %s: %w", kind, client.ObjectKeyFromObject(object), err),
		)
	}
	log.FromContext(ctx).
		Info("Removed an object that is no longer needed", "kind", kind, "object", client.ObjectKeyFromObject(object))
	return nil
}
