package migrate

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// applier is the field manager of `kubectl apply --server-side`.
const applier = "kubectl"

// installers are the field managers of programs that people install and change Pinniped with. kubectl's other commands
// are named kubectl-NAME.
var installers = []string{"kapp", "helm", "Helm", "before-first-apply", applier}

// byInstaller reports whether an installer owns the fields of an entry. A server-side apply by kubectl would conflict
// with its values, and keep the fields that the manifest does not have.
func byInstaller(entry metav1.ManagedFieldsEntry) bool {
	return entry.Operation == metav1.ManagedFieldsOperationUpdate && entry.Subresource == "" &&
		(slices.Contains(installers, entry.Manager) || strings.HasPrefix(entry.Manager, "kubectl-"))
}

// byApplier reports whether kubectl's server-side apply owns the fields of an entry.
func byApplier(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == applier && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
}

// byOthers reports whether a controller has applied the fields of an entry, and would apply them again.
func byOthers(entry metav1.ManagedFieldsEntry) bool {
	return entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" && entry.Manager != applier &&
		!strings.HasPrefix(entry.Manager, "pinniped-")
}

// managersOf returns the names of the managers of the chosen entries.
func managersOf(object found, chosen func(metav1.ManagedFieldsEntry) bool) []string {
	var names []string
	for _, entry := range object.ManagedFields {
		if chosen(entry) && !slices.Contains(names, entry.Manager) {
			names = append(names, entry.Manager)
		}
	}
	return names
}

// operation is an operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// mergeManagers returns a JSON patch that makes `kubectl apply --server-side` the owner of the installers' fields, and
// changes nothing else. Applying the patch fails if the owners have changed.
func mergeManagers(object found) ([]operation, error) {
	var entries []int // of installers
	var both bool     // kubectl has applied the object before
	for i, entry := range object.ManagedFields {
		switch {
		case byInstaller(entry):
			entries = append(entries, i)
		case byApplier(entry):
			both = true
		}
	}
	if len(entries) == 1 && !both {
		at := fmt.Sprintf("/metadata/managedFields/%d/", entries[0])
		entry := object.ManagedFields[entries[0]]
		return []operation{
			{"test", at + "manager", entry.Manager},
			{"test", at + "operation", entry.Operation},
			{"replace", at + "manager", applier},
			{"replace", at + "operation", metav1.ManagedFieldsOperationApply},
		}, nil
	}
	merged, err := merge(object.ManagedFields)
	if err != nil {
		return nil, err
	}
	return []operation{
		{"test", "/metadata/resourceVersion", object.ResourceVersion},
		{"replace", "/metadata/managedFields", merged},
	}, nil
}

// merge merges the entries of installers and of kubectl's server-side apply into one.
func merge(entries []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
	all := &fieldpath.Set{}
	var kept []metav1.ManagedFieldsEntry
	var one *metav1.ManagedFieldsEntry
	for _, entry := range entries {
		if !byApplier(entry) && !byInstaller(entry) {
			kept = append(kept, entry)
			continue
		}
		fields := &fieldpath.Set{}
		if err := fields.FromJSON(entry.FieldsV1.GetRawReader()); err != nil {
			return nil, fmt.Errorf("reading the fields of %q: %w", entry.Manager, err)
		}
		all = all.Union(fields)
		one = entry.DeepCopy()
	}
	encoded, err := all.ToJSON()
	if err != nil {
		return nil, fmt.Errorf("encoding the fields: %w", err)
	}
	one.Manager, one.Operation = applier, metav1.ManagedFieldsOperationApply
	one.FieldsV1 = metav1.NewFieldsV1(string(encoded))
	return append(kept, *one), nil
}

// release returns a JSON patch that removes the owner references to Deployments.
func release(object found) []operation {
	var patch []operation
	for i, owner := range slices.Backward(object.OwnerReferences) {
		if ofDeployment(owner) {
			at := fmt.Sprintf("/metadata/ownerReferences/%d", i)
			patch = append(patch, operation{"test", at + "/uid", owner.UID}, operation{"remove", at, nil})
		}
	}
	return patch
}

func ofDeployment(owner metav1.OwnerReference) bool {
	return owner.Kind == "Deployment" && strings.HasPrefix(owner.APIVersion, "apps/")
}
