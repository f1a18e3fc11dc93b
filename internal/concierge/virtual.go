package concierge

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// virtual is a cluster-scoped resource whose objects are never stored. Creating one is a query, and the created object
// is the result. A list is always empty.
type virtual struct {
	rest.TableConvertor

	group    string // always with the default suffix
	kind     string
	singular string
	newObj   func() runtime.Object
	newList  func() runtime.Object
}

func newVirtual(group, kind, resource, singular string, newObj, newList func() runtime.Object) virtual {
	return virtual{
		TableConvertor: rest.NewDefaultTableConvertor(schema.GroupResource{Group: group, Resource: resource}),
		group:          group, kind: kind, singular: singular, newObj: newObj, newList: newList,
	}
}

var defaultGroups = apis.GroupsFor(apis.DefaultGroupSuffix)

func (v virtual) New() runtime.Object     { return v.newObj() }
func (v virtual) NewList() runtime.Object { return v.newList() }
func (v virtual) Destroy()                {}
func (v virtual) NamespaceScoped() bool   { return false }
func (v virtual) GetSingularName() string { return v.singular }
func (v virtual) Categories() []string    { return []string{"pinniped"} }

// List returns an empty list, so that `kubectl get pinniped` works.
func (v virtual) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return v.newList(), nil
}

// refuse returns an error for requests that are invalid for this resource: with a dry run, or in a namespace.
func (v virtual) refuse(ctx context.Context, name string, options *metav1.CreateOptions) error {
	if options != nil && len(options.DryRun) > 0 {
		return v.invalid(name, field.NotSupported[string](field.NewPath("dryRun"), options.DryRun, nil))
	}
	if namespace := genericapirequest.NamespaceValue(ctx); namespace != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("namespace is not allowed on %s: %v", v.kind, namespace))
	}
	return nil
}

// invalid returns a 422 error, with an empty kind and the default group because existing clients and tests expect that.
func (v virtual) invalid(name string, problem *field.Error) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: v.group}, name, field.ErrorList{problem})
}
