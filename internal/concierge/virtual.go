package concierge

import (
	"context"
	"fmt"
	"strings"

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

	group     string // always with the default suffix
	kind      string
	obj, list runtime.Object // empty; not changed
}

var _ interface {
	rest.Storage
	rest.Lister
	rest.Scoper
	rest.CategoriesProvider
	rest.SingularNameProvider
} = virtual{}

func newVirtual(group, kind string, obj, list runtime.Object) virtual {
	resource := schema.GroupResource{Group: group, Resource: strings.ToLower(kind) + "s"}
	return virtual{
		TableConvertor: rest.NewDefaultTableConvertor(resource), group: group, kind: kind, obj: obj, list: list,
	}
}

var defaultGroups = apis.GroupsFor(apis.DefaultGroupSuffix)

func (v virtual) New() runtime.Object     { return v.obj.DeepCopyObject() }
func (v virtual) NewList() runtime.Object { return v.list.DeepCopyObject() }
func (v virtual) Destroy()                {}
func (v virtual) NamespaceScoped() bool   { return false }
func (v virtual) GetSingularName() string { return strings.ToLower(v.kind) }
func (v virtual) Categories() []string    { return []string{"pinniped"} }

// List returns an empty list, so that `kubectl get pinniped` works.
func (v virtual) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return v.NewList(), nil
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
